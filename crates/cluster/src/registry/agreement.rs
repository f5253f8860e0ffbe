//! The scripts agree with the functions: equal requests, in a real Redis and on an entry in memory.

use super::store::{OwnLease, RedisAddress, Store};
use stillgate_devices::Generation;
use stillgate_devices::directory::{self, Connect, DirectoryEntry, Disconnect, Duplicate, Era, Location};
use stillgate_testkit::Redis;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn place(&mut self) -> Location {
        // Epochs that are not exact as doubles, next to each other.
        let epoch = u64::MAX - self.below(2);
        let node = ["a", "b with a space", ""][self.below(3) as usize].into();
        Location { node, epoch, connection: [8, 9, 10, u64::MAX - 1, u64::MAX][self.below(5) as usize] }
    }
}

fn store(redis: &Redis) -> Store {
    Store::new(&RedisAddress { urls: vec![redis.url(0)], is_cluster: false, ca_pem: None }).unwrap()
}

#[tokio::test]
async fn entries_change_alike() {
    let redis = Redis::start();
    let store = store(&redis);
    let mut random = Random(7);
    for device in ["d", "a/b%20{c}.\u{e4} \n", &"x".repeat(1_024)] {
        let mut entry: Option<DirectoryEntry> = None;
        for step in 0..1_500_u64 {
            let place = random.place();
            let last = entry.as_ref().map_or(0, |entry| entry.generation().0);
            let near = Generation((last + 1).saturating_sub(random.below(3)).max(1));
            match random.below(4) {
                0 | 1 => {
                    let duplicate = if random.below(2) == 0 { Duplicate::Replace } else { Duplicate::Refuse };
                    let dead = (random.below(3) == 0).then_some(near);
                    let era = Era(90_000_000 + random.below(2) as u32);
                    let request = Connect { place, era, duplicate, dead, now_ms: step };
                    let said = store.connect(device, &request).await.unwrap();
                    assert_eq!(said, directory::connect(&mut entry, request.clone()), "{step}: {request:?}");
                }
                2 => {
                    let said = store.register(device, &place, near, step).await.unwrap();
                    assert_eq!(said, directory::register(&mut entry, place.clone(), near, step), "{step}: {place:?}");
                }
                _ => {
                    // Mostly the present connection.
                    let place = match &entry {
                        Some(DirectoryEntry::Online { place: current, .. }) if random.below(3) > 0 => current.clone(),
                        _ => place,
                    };
                    let ended = Disconnect { place, and_older: random.below(2) == 0 };
                    store.disconnect(device, &ended, step).await.unwrap();
                    directory::disconnect(&mut entry, &ended, step);
                }
            }
            assert_eq!(store.look_up(device).await.unwrap(), entry, "{step}");
        }
    }
}

#[tokio::test]
async fn a_lease_is_held_by_one_process() {
    let redis = Redis::start();
    let store = store(&redis);
    let myself = |epoch, filled| OwnLease { node: "a", epoch, filled, address: "127.0.0.1:1" };
    let first = store.hold(&myself(u64::MAX, None)).await.unwrap();
    assert!(first.is_held && first.era.is_none() && !first.members.is_complete());
    assert!(!store.hold(&myself(u64::MAX - 1, None)).await.unwrap().is_held);
    store.begin_era(None, Era(5)).await.unwrap();
    store.begin_era(None, Era(9)).await.unwrap();
    let second = store.hold(&myself(u64::MAX, Some(Era(5)))).await.unwrap();
    assert_eq!((second.is_held, second.era), (true, Some(Era(5))));
    assert!(second.era_now.0 > 90_000_000, "2026 and later");
    let read = store.read().await.unwrap();
    let member = read.members.get("a").unwrap();
    assert_eq!((member.lease.epoch, &*member.address, member.filled), (u64::MAX, "127.0.0.1:1", Some(Era(5))));
    assert!(read.members.is_complete() && !read.is_held);
}

#[tokio::test]
async fn what_is_not_an_entry_is_overwritten() {
    let redis = Redis::start();
    let store = store(&redis);
    redis.cli(&["SET", "sg:d:d", "nonsense"]);
    assert_eq!(store.look_up("d").await.unwrap(), None);
    let place = Location { node: "a".into(), epoch: 1, connection: 1 };
    store.register("d", &place, Generation(3), 0).await.unwrap();
    assert!(matches!(
        store.look_up("d").await.unwrap(),
        Some(DirectoryEntry::Online { generation: Generation(3), .. })
    ));
}
