//! The slow check: validates a payload as one MessagePack array that version 1 allows, including the parts that the
//! fast decoder skips. Runs on payloads that the fast decoder rejected or did not read wholly.
//!
//! No allocation; recursion ends at [`DEPTH_MAX`]. Linear in the bytes: keys of a small map are compared pairwise, keys
//! of a large one by their hashes.

use std::hash::{BuildHasher, RandomState};

use arrayvec::ArrayVec;
use rmp::Marker;

use super::fault::FormatFault;
use super::reader::PayloadReader;
use super::{DEPTH_MAX, FRAME_BYTES_MAX};

#[cold]
#[inline(never)]
pub(super) fn check(payload: &[u8]) -> Result<(), FormatFault> {
    let mut reader = PayloadReader::new(payload);
    let mut look = reader;
    match look.marker() {
        None => return Err(FormatFault::Empty),
        Some(Marker::FixArray(_) | Marker::Array16 | Marker::Array32) => {}
        Some(_) => return Err(FormatFault::NotArray),
    }
    check_value(&mut reader, 1)?;
    if reader.rest().is_empty() { Ok(()) } else { Err(FormatFault::Trailing) }
}

/// Checks one value; `depth` is its level if it is an array or a map.
fn check_value(reader: &mut PayloadReader<'_>, depth: usize) -> Result<(), FormatFault> {
    let mut look = *reader;
    match look.marker().ok_or(FormatFault::Truncated)? {
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => check_array(reader, depth),
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => check_map(reader, depth),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => check_text(reader),
        Marker::F32 | Marker::F64 => Err(FormatFault::Float),
        Marker::Reserved => Err(FormatFault::Reserved),
        Marker::Ext8
        | Marker::Ext16
        | Marker::Ext32
        | Marker::FixExt1
        | Marker::FixExt2
        | Marker::FixExt4
        | Marker::FixExt8
        | Marker::FixExt16 => Err(FormatFault::Extension),
        _ => reader.skip().ok_or(FormatFault::Truncated),
    }
}

fn check_text(reader: &mut PayloadReader<'_>) -> Result<(), FormatFault> {
    let mut look = *reader;
    // Two possible faults: the text is truncated, or it is not UTF-8.
    look.skip().ok_or(FormatFault::Truncated)?;
    reader.text().ok_or(FormatFault::Utf8)?;
    Ok(())
}

fn check_array(reader: &mut PayloadReader<'_>, depth: usize) -> Result<(), FormatFault> {
    if depth > DEPTH_MAX {
        return Err(FormatFault::Depth);
    }
    // Each announced value takes a byte at least: the loop ends with the payload.
    for _ in 0..reader.array().ok_or(FormatFault::Truncated)? {
        check_value(reader, depth + 1)?;
    }
    Ok(())
}

fn check_map(reader: &mut PayloadReader<'_>, depth: usize) -> Result<(), FormatFault> {
    if depth > DEPTH_MAX {
        return Err(FormatFault::Depth);
    }
    let count = reader.map().ok_or(FormatFault::Truncated)?;
    let entries = reader.rest();
    for _ in 0..count {
        let mut look = *reader;
        match look.marker().ok_or(FormatFault::Truncated)? {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => check_text(reader)?,
            _ => return Err(FormatFault::KeyType),
        }
        check_value(reader, depth + 1)?;
    }
    // Only now are the entries known to be whole. Each key belongs to one map, so all maps together cost one more pass
    // per level.
    let differ = if count <= PAIRWISE_MAX {
        few_keys_differ(entries, count)
    } else {
        many_keys_differ(entries, count)
    };
    if differ { Ok(()) } else { Err(FormatFault::KeyTwice) }
}

fn few_keys_differ(entries: &[u8], count: usize) -> bool {
    let mut seen = ArrayVec::<&[u8], PAIRWISE_MAX>::new();
    keys(entries, count).all(|(_, key)| !seen.contains(&key) && seen.try_push(key).is_ok())
}

/// Inserts each key into an open-addressing table under a hash that a peer cannot predict. The table stays out of the
/// stack frames of [`check_map`], which recurses.
#[inline(never)]
fn many_keys_differ(entries: &[u8], count: usize) -> bool {
    // More keys than can differ: there is a duplicate.
    if count > KEYS_MAX {
        return false;
    }
    let hashes = RandomState::new();
    let mut table = [0_u16; 2 * KEYS_MAX.next_power_of_two()];
    // At most half full.
    let Some(slots) = table.get_mut(..2 * count.next_power_of_two()) else { return false };
    let mask = slots.len() - 1;
    keys(entries, count).all(|(offset, key)| {
        let mut slot = usize::try_from(hashes.hash_one(key) & mask as u64).unwrap_or_default();
        // Offsets are stored plus one: 0 is an empty slot.
        while let Some(taken) = slots.get(slot).and_then(|offset| usize::from(*offset).checked_sub(1)) {
            if read_key(&mut PayloadReader::new(entries.get(taken..).unwrap_or_default())) == key {
                return false;
            }
            slot = (slot + 1) & mask;
        }
        let Ok(offset) = u16::try_from(offset + 1) else { return false };
        slots.get_mut(slot).is_some_and(|slot| {
            *slot = offset;
            true
        })
    })
}

/// The keys of a map whose entries are known to be whole, with their offsets.
fn keys(entries: &[u8], count: usize) -> impl Iterator<Item = (usize, &[u8])> {
    let mut reader = PayloadReader::new(entries);
    (0..count).map_while(move |_| {
        let offset = entries.len() - reader.rest().len();
        let key = read_key(&mut reader);
        reader.skip()?;
        Some((offset, key))
    })
}

fn read_key<'a>(reader: &mut PayloadReader<'a>) -> &'a [u8] {
    let bytes = reader
        .marker()
        .and_then(|marker| reader.scalar_length(marker))
        .and_then(|length| reader.take_bytes(length));
    bytes.unwrap_or_default()
}

/// Up to this many keys pairwise comparison is cheaper than hashing.
const PAIRWISE_MAX: usize = 16;

/// The most keys of one map that can differ in [`FRAME_BYTES_MAX`]: the empty one takes 2 bytes with its value, the 128
/// of one byte 3 each, all others at least 4.
const KEYS_MAX: usize = 1 + 128 + (FRAME_BYTES_MAX - 2 - 3 * 128) / 4;

#[cfg(test)]
mod tests {
    use super::check;
    use crate::protocol::fault::FormatFault;

    #[test]
    fn rejects_duplicate_keys_in_maps_of_any_size() {
        for count in [2u16, 16, 17, 300, 3_000] {
            let frame = |keys: &mut dyn Iterator<Item = u16>| {
                let mut bytes = vec![0x91, 0xde];
                bytes.extend((count).to_be_bytes());
                for key in keys {
                    bytes.push(0xa2);
                    bytes.extend([u8::try_from(key / 128).unwrap(), u8::try_from(key % 128).unwrap(), 0xc0]);
                }
                bytes
            };
            assert_eq!(check(&frame(&mut (0..count))), Ok(()), "{count}");
            assert_eq!(check(&frame(&mut (0..count).rev())), Ok(()), "{count}");
            assert_eq!(check(&frame(&mut (0..count - 1).chain([0]))), Err(FormatFault::KeyTwice), "{count}");
            // A wider form encodes the same key.
            let mut wide = frame(&mut (0..count - 1));
            wide.extend([0xd9, 2, 0, 0, 0xc0]);
            assert_eq!(check(&wide), Err(FormatFault::KeyTwice), "{count}");
        }
    }

    /// The shortest of many runs of each, in turn, because other load on the machine lengthens them.
    fn nanos(payloads: [&[u8]; 2]) -> [u64; 2] {
        let mut shortest = [u64::MAX; 2];
        for _ in 0..100 {
            for (payload, shortest) in payloads.iter().zip(&mut shortest) {
                let began = crate::clock::read_boot_nanos();
                assert_eq!(check(payload), Ok(()));
                *shortest = (*shortest).min(crate::clock::read_boot_nanos() - began);
            }
        }
        shortest
    }

    #[test]
    fn large_map_costs_as_much_per_key_as_small_maps() {
        let key = |number: u16| {
            let [high, low] = [number / 128, number % 128].map(|part| u8::try_from(part).unwrap());
            [0xa2, high, low, 0xc0]
        };
        // In a scrambled order.
        let keys: Vec<u16> =
            (0..4_032_u32).map(|number| u16::try_from(number * 2_741 % 4_051).unwrap()).collect();
        let entries = |keys: &[u16]| keys.iter().flat_map(|number| key(*number)).collect::<Vec<u8>>();
        let large = [&[0x91, 0xde][..], &4_032_u16.to_be_bytes(), &entries(&keys)].concat();
        let maps = keys.chunks(18).flat_map(|keys| [vec![0xde, 0, 18], entries(keys)].concat());
        let small = [&[0x91, 0xdc][..], &(4_032_u16 / 18).to_be_bytes(), &maps.collect::<Vec<u8>>()].concat();
        let [large, small] = nanos([&large, &small]);
        eprintln!("{large} ns for one large map, {small} ns for small ones");
        // Compared with each other, each key would meet two thousand others.
        assert!(large < 10 * small, "{large} ns for one large map, {small} ns for small ones");
    }
}
