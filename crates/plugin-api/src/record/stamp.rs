//! Formats a point in time for logs: RFC 3339 with milliseconds, or Apache's common log date; always UTC.
//!
//! The calendar is computed once a second and kept as text, since a busy worker writes thousands of lines in one
//! second. Other time zones are not supported: a gateway's log is read next to those of other machines.

/// The last second of the year 9999, after which neither format has room for the year.
const LAST_SECOND: u64 = 253_402_300_799;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// The text of one second, kept until another one is requested.
#[derive(Debug, Clone)]
pub struct Stamp {
    second: u64,
    /// `2026-11-21T00:27:13`
    rfc3339: [u8; 19],
    /// `21/Nov/2026:00:27:13 +0000`
    common: [u8; 26],
}

impl Default for Stamp {
    fn default() -> Stamp {
        Stamp::new()
    }
}

impl Stamp {
    /// The stamp of the epoch.
    pub fn new() -> Stamp {
        let mut stamp = Stamp { second: 0, rfc3339: *b"0000-00-00T00:00:00", common: *b"00/Jan/0000:00:00:00 +0000" };
        stamp.compute(0);
        stamp
    }

    /// Appends e.g. `2026-11-21T00:27:13.042Z`.
    pub fn push_rfc3339(&mut self, unix_ms: u64, line: &mut Vec<u8>) {
        self.go_to(unix_ms / 1000);
        let milliseconds = unix_ms % 1000;
        line.extend_from_slice(&self.rfc3339);
        line.push(b'.');
        line.push(b'0' + (milliseconds / 100) as u8);
        line.push(b'0' + (milliseconds / 10 % 10) as u8);
        line.push(b'0' + (milliseconds % 10) as u8);
        line.push(b'Z');
    }

    /// Appends e.g. `21/Nov/2026:00:27:13 +0000`.
    pub fn push_common(&mut self, unix_ms: u64, line: &mut Vec<u8>) {
        self.go_to(unix_ms / 1000);
        line.extend_from_slice(&self.common);
    }

    /// Appends e.g. `2026-11-21T00:27:13+00:00`, as nginx's `$time_iso8601`.
    pub fn push_iso8601(&mut self, unix_ms: u64, line: &mut Vec<u8>) {
        self.go_to(unix_ms / 1000);
        line.extend_from_slice(&self.rfc3339);
        line.extend_from_slice(b"+00:00");
    }

    /// Year, month and day, then hour, minute and second, as in `2026-11-21T00:27:13`.
    pub fn digits(&mut self, unix_ms: u64) -> &[u8; 19] {
        self.go_to(unix_ms / 1000);
        &self.rfc3339
    }

    fn go_to(&mut self, second: u64) {
        let second = second.min(LAST_SECOND);
        if second != self.second {
            self.compute(second);
        }
    }

    fn compute(&mut self, second: u64) {
        self.second = second;
        let (year, month, day) = civil_from_days(second / 86_400);
        let (hour, minute, rest) = (second / 3600 % 24, second / 60 % 60, second % 60);
        digits(&mut self.rfc3339[0..4], year);
        digits(&mut self.rfc3339[5..7], month);
        digits(&mut self.rfc3339[8..10], day);
        digits(&mut self.common[0..2], day);
        self.common[3..6].copy_from_slice(MONTHS[month as usize - 1]);
        digits(&mut self.common[7..11], year);
        for (text, at) in [(&mut self.rfc3339[..], 11), (&mut self.common[..], 12)] {
            digits(&mut text[at..at + 2], hour);
            digits(&mut text[at + 3..at + 5], minute);
            digits(&mut text[at + 6..at + 8], rest);
        }
    }
}

/// One point in time, in milliseconds since the epoch, e.g. `2026-11-21T00:27:13.042Z`.
pub fn rfc3339(unix_ms: u64) -> String {
    let mut text = Vec::new();
    Stamp::new().push_rfc3339(unix_ms, &mut text);
    text.into_iter().map(char::from).collect()
}

/// Year, month (1 to 12) and day (1 to 31) of a day counted from 1970-01-01, in the Gregorian calendar
/// (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        // Reference: `date -u -d @SECONDS`.
        for (unix_ms, rfc3339, common) in [
            (0, "1970-01-01T00:00:00.000Z", "01/Jan/1970:00:00:00 +0000"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z", "28/Feb/2000:23:59:59 +0000"),
            (951_868_799_001, "2000-02-29T23:59:59.001Z", "29/Feb/2000:23:59:59 +0000"),
            (1_795_220_833_042, "2026-11-21T00:27:13.042Z", "21/Nov/2026:00:27:13 +0000"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z", "01/Mar/2100:00:00:00 +0000"),
            (u64::MAX, "9999-12-31T23:59:59.615Z", "31/Dec/9999:23:59:59 +0000"),
        ] {
            let mut stamp = Stamp::new();
            let (mut first, mut second) = (Vec::new(), Vec::new());
            stamp.push_rfc3339(unix_ms, &mut first);
            stamp.push_common(unix_ms, &mut second);
            assert_eq!(String::from_utf8_lossy(&first), rfc3339);
            assert_eq!(String::from_utf8_lossy(&second), common);
        }
    }
}
