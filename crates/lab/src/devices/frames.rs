//! WebSocket frames (RFC 6455) as a client reads and writes them: a few lines of code, no state.
//!
//! The gateway's own codec is a server's, and the laboratory serves any gateway; a client that shares no code with the
//! server also finds errors that both would share. A message in several frames is refused: no gateway splits the short
//! ones that are sent here.

/// A longer frame is not one of our messages.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;

/// Kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opcode {
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

/// Its kind, its payload, and its length including its head.
type Frame<'a> = (Opcode, &'a [u8], usize);

/// A whole frame at the beginning of `bytes`; `None`: more bytes are needed.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Frame<'_>>, &'static str> {
    let [first, second, ..] = *bytes else { return Ok(None) };
    let opcode = match first & !FIN {
        1 => Opcode::Text,
        2 => Opcode::Binary,
        8 => Opcode::Close,
        9 => Opcode::Ping,
        10 => Opcode::Pong,
        0 => return Err("a message in several frames"),
        _ => return Err("a frame of an unknown kind"),
    };
    if first & FIN == 0 {
        return Err("a message in several frames");
    }
    if second & MASKED != 0 {
        return Err("a masked frame, which only clients send");
    }
    let (length, head) = match usize::from(second) {
        126 => match *bytes {
            [_, _, a, b, ..] => (usize::from(u16::from_be_bytes([a, b])), 4),
            _ => return Ok(None),
        },
        127 => match bytes.get(2..10).and_then(|long| <[u8; 8]>::try_from(long).ok()) {
            Some(long) => (usize::try_from(u64::from_be_bytes(long)).unwrap_or(usize::MAX), 10),
            None => return Ok(None),
        },
        length => (length, 2),
    };
    if length > PAYLOAD_BYTES_MAX {
        return Err("a frame of more than 1 MiB");
    }
    Ok(bytes.get(head..head + length).map(|payload| (opcode, payload, head + length)))
}

/// Adds a frame, masked as clients must.
pub(super) fn write(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: [u8; 4]) {
    out.push(FIN | opcode as u8);
    match payload.len() {
        length @ 0..126 => out.push(MASKED | length as u8),
        length @ 126..0x1_0000 => {
            out.push(MASKED | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(MASKED | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

/// The code of a close frame; 1005 if it has none.
pub(super) fn close_code(payload: &[u8]) -> u16 {
    const NONE: u16 = 1005;
    payload.first_chunk::<2>().map_or(NONE, |code| u16::from_be_bytes(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmasked(payload: &[u8]) -> Vec<u8> {
        let mut out = vec![FIN | 1];
        match payload.len() {
            length @ 0..126 => out.push(length as u8),
            length @ 126..0x1_0000 => {
                out.push(126);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                out.push(127);
                out.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn frames_of_every_length_are_read_at_every_split() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536] {
            let payload = vec![b'x'; length];
            let frame = unmasked(&payload);
            assert_eq!(read(&frame), Ok(Some((Opcode::Text, payload.as_slice(), frame.len()))));
            for end in (0..frame.len().min(20)).chain([frame.len() - 1]) {
                assert_eq!(read(&frame[..end]), Ok(None), "{length} cut to {end}");
            }
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        for (bytes, expected) in [
            (&[0x01, 0x00][..], "several frames"),
            (&[0x80, 0x00], "several frames"),
            (&[0x83, 0x00], "unknown kind"),
            (&[0x81, 0x80], "masked"),
            (&[0x81, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "1 MiB"),
        ] {
            assert!(read(bytes).is_err_and(|why| why.contains(expected)), "{bytes:?}");
        }
    }

    #[test]
    fn masked_frames_can_be_unmasked() {
        let mut out = Vec::new();
        write(&mut out, Opcode::Text, b"Hello", [0x37, 0xfa, 0x21, 0x3d]);
        // The example of RFC 6455 section 5.7.
        assert_eq!(out, [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
        out.clear();
        write(&mut out, Opcode::Binary, &[0; 70_000], [0; 4]);
        assert_eq!(out[..10], [0x82, 0xff, 0, 0, 0, 0, 0, 1, 0x11, 0x70]);
    }

    #[test]
    fn a_close_frame_has_a_code_or_none() {
        assert_eq!(close_code(&[0x03, 0xf4, b'x']), 1012);
        assert_eq!(close_code(&[3]), 1005);
    }
}
