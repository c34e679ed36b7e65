//! The slow check: whether a payload is one MessagePack array as version 1 allows it, down to the parts that no
//! reader looks at. Runs on what the fast decoder did not like or did not look at.
//!
//! No allocation; recursion ends at [`DEPTH_MAX`]. Work is linear in the bytes: keys of a small map are compared pairwise,
//! keys of a large one by their hashes.

use std::hash::{BuildHasher, RandomState};

use arrayvec::ArrayVec;
use rmp::Marker;

use super::fault::Flaw;
use super::reader::Reader;
use super::{DEPTH_MAX, FRAME_BYTES_MAX};

/// Looks at every byte.
#[cold]
#[inline(never)]
pub(super) fn check(payload: &[u8]) -> Result<(), Flaw> {
    let mut reader = Reader::new(payload);
    let mut look = reader;
    match look.marker() {
        None => return Err(Flaw::Empty),
        Some(Marker::FixArray(_) | Marker::Array16 | Marker::Array32) => {}
        Some(_) => return Err(Flaw::NotArray),
    }
    value(&mut reader, 1)?;
    if reader.rest().is_empty() { Ok(()) } else { Err(Flaw::Trailing) }
}

/// Checks one value that stands at `depth` if it is an array or a map.
fn value(reader: &mut Reader<'_>, depth: usize) -> Result<(), Flaw> {
    let mut look = *reader;
    match look.marker().ok_or(Flaw::Truncated)? {
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => array(reader, depth),
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => map(reader, depth),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => text(reader),
        Marker::F32 | Marker::F64 => Err(Flaw::Float),
        Marker::Reserved => Err(Flaw::Reserved),
        Marker::Ext8
        | Marker::Ext16
        | Marker::Ext32
        | Marker::FixExt1
        | Marker::FixExt2
        | Marker::FixExt4
        | Marker::FixExt8
        | Marker::FixExt16 => Err(Flaw::Extension),
        _ => reader.skip().ok_or(Flaw::Truncated),
    }
}

fn text(reader: &mut Reader<'_>) -> Result<(), Flaw> {
    let mut look = *reader;
    // Two reasons for no text: it ends too late, or it is not UTF-8.
    look.skip().ok_or(Flaw::Truncated)?;
    reader.text().ok_or(Flaw::Utf8)?;
    Ok(())
}

fn array(reader: &mut Reader<'_>, depth: usize) -> Result<(), Flaw> {
    if depth > DEPTH_MAX {
        return Err(Flaw::Depth);
    }
    // However many are claimed, each takes a byte: the loop ends with the payload.
    for _ in 0..reader.array().ok_or(Flaw::Truncated)? {
        value(reader, depth + 1)?;
    }
    Ok(())
}

fn map(reader: &mut Reader<'_>, depth: usize) -> Result<(), Flaw> {
    if depth > DEPTH_MAX {
        return Err(Flaw::Depth);
    }
    let count = reader.map().ok_or(Flaw::Truncated)?;
    let entries = reader.rest();
    for _ in 0..count {
        let mut look = *reader;
        match look.marker().ok_or(Flaw::Truncated)? {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => text(reader)?,
            _ => return Err(Flaw::KeyType),
        }
        value(reader, depth + 1)?;
    }
    // Only now, when the entries are known to be whole: each key stands in one map, so all maps together cost one
    // more pass for each level.
    let differ = if count <= PAIRWISE_MAX {
        few_keys_differ(entries, count)
    } else {
        many_keys_differ(entries, count)
    };
    if differ { Ok(()) } else { Err(Flaw::KeyTwice) }
}

fn few_keys_differ(entries: &[u8], count: usize) -> bool {
    let mut seen = ArrayVec::<&[u8], PAIRWISE_MAX>::new();
    keys(entries, count).all(|(_, key)| !seen.contains(&key) && seen.try_push(key).is_ok())
}

/// Puts each key into a table of open addressing under a hash that a peer cannot foresee. The table is kept out of the
/// frames of [`map`], which recurses.
#[inline(never)]
fn many_keys_differ(entries: &[u8], count: usize) -> bool {
    // More keys than can differ: some are the same.
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
        // Offsets are kept plus one: 0 is an empty slot.
        while let Some(taken) = slots.get(slot).and_then(|offset| usize::from(*offset).checked_sub(1)) {
            if key_at(entries, taken) == key {
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

fn key_at(entries: &[u8], offset: usize) -> &[u8] {
    key(&mut Reader::new(entries.get(offset..).unwrap_or_default()))
}

/// The keys of a map whose entries are known to be whole, and where each stands.
fn keys(entries: &[u8], count: usize) -> impl Iterator<Item = (usize, &[u8])> {
    let mut reader = Reader::new(entries);
    (0..count).map_while(move |_| {
        let offset = entries.len() - reader.rest().len();
        let key = key(&mut reader);
        reader.skip()?;
        Some((offset, key))
    })
}

fn key<'a>(reader: &mut Reader<'a>) -> &'a [u8] {
    let bytes = reader
        .marker()
        .and_then(|marker| reader.scalar_length(marker))
        .and_then(|length| reader.take(length));
    bytes.unwrap_or_default()
}

/// Up to here comparing each with each is cheaper than hashing.
const PAIRWISE_MAX: usize = 16;

/// The most keys of one map that can differ in [`FRAME_BYTES_MAX`]: the empty one takes 2 bytes with its value, the
/// 128 of one byte 3 each, all others at least 4.
const KEYS_MAX: usize = 1 + 128 + (FRAME_BYTES_MAX - 2 - 3 * 128) / 4;

#[cfg(test)]
mod tests {
    use super::check;
    use crate::protocol::Flaw;

    #[test]
    fn keys_may_not_come_twice_however_many_there_are() {
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
            assert_eq!(check(&frame(&mut (0..count - 1).chain([0]))), Err(Flaw::KeyTwice), "{count}");
            // The same key in a wider form is the same key.
            let mut wide = frame(&mut (0..count - 1));
            wide.extend([0xd9, 2, 0, 0, 0xc0]);
            assert_eq!(check(&wide), Err(Flaw::KeyTwice), "{count}");
        }
    }

    #[test]
    fn depth_ends_at_four() {
        assert_eq!(check(&[0x91, 0x91, 0x91, 0x90]), Ok(()));
        assert_eq!(check(&[0x91, 0x91, 0x91, 0x91, 0xc0]), Ok(()));
        assert_eq!(check(&[0x91, 0x91, 0x91, 0x91, 0x90]), Err(Flaw::Depth));
        assert_eq!(check(&[0x91; 4_000]), Err(Flaw::Depth));
    }
}
