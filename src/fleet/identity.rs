//! The identity of this host: stable across restarts, unique among hosts, with an epoch that grows at each
//! start.
//!
//! The stored identity records the machine that wrote it. A host on another machine (a copied disk), or one
//! that cannot store its epoch, starts with a new identity.

use super::command::Host;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// A host identity and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The host's name among the others.
    pub host: Host,
    /// The epoch, larger at each start.
    pub epoch: u64,
    /// The last known host count, used for shares until Redis reports a new one.
    pub hosts: u32,
    starts: u32,
    /// The digest of the machine's marks.
    machine: [u8; 16],
}

impl Identity {
    /// Makes a new identity.
    #[must_use]
    pub fn fresh(marks: &[Vec<u8>], random: [u8; 32]) -> Identity {
        let (host, chance) = split(random);
        Identity { host, epoch: epoch(1, chance), hosts: 1, starts: 1, machine: machine(&host, marks) }
    }

    /// The stored identity with the next epoch if this machine wrote it, else a new identity. `marks`
    /// distinguish this machine from others.
    #[must_use]
    pub fn next(kept: Option<&[u8]>, marks: &[Vec<u8>], random: [u8; 32]) -> Identity {
        let before = kept.and_then(Identity::read);
        let before = before.filter(|before| before.machine == machine(&before.host, marks));
        let fresh = Identity::fresh(marks, random);
        let Some(before) = before else { return fresh };
        let starts = before.starts.saturating_add(1);
        Identity { starts, epoch: epoch(starts, split(random).1), ..before }
    }

    /// Whether this is the first start under this name.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.starts == 1
    }

    /// The same epoch under another name, for a host whose name is taken by another.
    #[must_use]
    pub fn renamed(&self, host: Host, marks: &[Vec<u8>]) -> Identity {
        Identity { host, machine: machine(&host, marks), ..*self }
    }

    /// The bytes to store.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.host);
        bytes.extend_from_slice(&self.machine);
        bytes.extend_from_slice(&self.starts.to_le_bytes());
        bytes.extend_from_slice(&self.hosts.to_le_bytes());
        bytes.extend_from_slice(&digest(&self.host, &[&bytes]));
        bytes
    }

    /// Reads stored bytes; `None` if malformed. The epoch is not stored and reads as 0.
    fn read(bytes: &[u8]) -> Option<Identity> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (host, rest) = rest.split_first_chunk::<16>()?;
        let (machine, rest) = rest.split_first_chunk::<16>()?;
        let (starts, rest) = rest.split_first_chunk::<4>()?;
        let (hosts, sum) = rest.split_first_chunk::<4>()?;
        let summed = bytes.get(..bytes.len().checked_sub(sum.len())?)?;
        (*sum == digest(host, &[summed])).then_some(Identity {
            host: *host,
            epoch: 0,
            hosts: u32::from_le_bytes(*hosts).max(1),
            starts: u32::from_le_bytes(*starts),
            machine: *machine,
        })
    }
}

fn machine(host: &Host, marks: &[Vec<u8>]) -> [u8; 16] {
    digest(host, &marks.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Keyed with the host name, which only the file has, so that the digest does not disclose the machine.
fn digest(host: &Host, parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = SipHasher13::new_with_key(host);
    for part in parts {
        hasher.write_u64(part.len() as u64);
        hasher.write(part);
    }
    hasher.finish128().as_bytes()
}

/// The epoch of a start. Two machines started from one copy differ by the random part: the earlier one learns by its
/// heartbeats to take another name.
fn epoch(starts: u32, chance: u64) -> u64 {
    (u64::from(starts) << LIFE_BITS) + chance % (1 << CHANCE_BITS)
}

fn split(random: [u8; 32]) -> (Host, u64) {
    let (host, rest) =
        random.split_first_chunk::<16>().map_or(([0; 16], &[][..]), |(host, rest)| (*host, rest));
    (host, rest.first_chunk::<8>().map_or(0, |chance| u64::from_le_bytes(*chance)))
}

const MAGIC: &[u8; 8] = b"tgfleet1";

const BYTES: usize = 8 + 16 + 16 + 4 + 4 + 16;

const LIFE_BITS: u32 = 20;

const CHANCE_BITS: u32 = 19;

#[cfg(test)]
mod tests {
    use super::{BYTES, Identity};

    fn marks(machine: &str) -> Vec<Vec<u8>> {
        vec![machine.into(), b"web-1".to_vec(), b"02:42:ac:11:00:02".to_vec()]
    }

    #[test]
    fn a_restart_is_the_next_life_of_the_same_host() {
        let mut before = Identity::fresh(&marks("m1"), [1; 32]);
        before.hosts = 7;
        for life in 2..50 {
            let kept = before.to_bytes();
            assert_eq!(kept.len(), BYTES);
            let next = Identity::next(Some(&kept), &marks("m1"), [life; 32]);
            assert_eq!((next.host, next.hosts), (before.host, 7));
            assert!(next.epoch > before.epoch);
            before = next;
        }
    }

    #[test]
    fn a_copy_on_another_machine_is_somebody_else() {
        let kept = Identity::fresh(&marks("m1"), [1; 32]).to_bytes();
        let same = Identity::next(Some(&kept), &marks("m1"), [2; 32]);
        let copy = Identity::next(Some(&kept), &marks("m2"), [2; 32]);
        assert_ne!(copy.host, same.host);
        assert_eq!(copy, Identity::fresh(&marks("m2"), [2; 32]), "nothing of it is taken over");
        // Marks split at another boundary give another digest.
        let split = [b"m".to_vec(), b"1web-1".to_vec(), marks("")[2].clone()];
        assert_ne!(Identity::next(Some(&kept), &split, [2; 32]).host, same.host);
    }

    #[test]
    fn what_is_damaged_is_not_gone_by() {
        let good = Identity::fresh(&marks("m1"), [1; 32]);
        let fresh = Identity::fresh(&marks("m1"), [9; 32]);
        assert_eq!(Identity::next(None, &marks("m1"), [9; 32]), fresh);
        for length in 0..BYTES {
            let kept = good.to_bytes();
            assert_eq!(Identity::next(Some(&kept[..length]), &marks("m1"), [9; 32]), fresh);
            let mut turned = kept.clone();
            turned[length] ^= 1;
            assert_eq!(Identity::next(Some(&turned), &marks("m1"), [9; 32]), fresh, "byte {length}");
        }
    }

    #[test]
    fn who_has_another_name_keeps_it() {
        let renamed = Identity::fresh(&marks("m1"), [1; 32]).renamed([5; 16], &marks("m1"));
        assert_eq!(Identity::next(Some(&renamed.to_bytes()), &marks("m1"), [2; 32]).host, [5; 16]);
    }
}
