//! Who this host is among the others: the same over restarts, never the same as another one, and in each life later than
//! in all before.
//!
//! What is kept says on which machine it was made. A machine that is another one, because its disk was copied, does not go
//! by it; neither does a host that cannot keep which life it is in.

use super::call::Host;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// A host in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// By what it is known.
    pub host: Host,
    /// Which life this is. Later ones are larger, and none meets the lanes of the one before.
    pub epoch: u64,
    /// How many hosts there were when last heard of: with so many it shares until it hears again.
    pub hosts: u32,
    /// How often it has started.
    starts: u32,
    machine: Machine,
}

/// What tells a machine from others, for whoever knows the name of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine([u8; 16]);

impl Identity {
    /// Somebody who never was: nothing of him is kept.
    #[must_use]
    pub fn fresh(marks: &[Vec<u8>], random: [u8; 32]) -> Identity {
        let (host, chance) = split(random);
        Identity { host, epoch: epoch(1, chance), hosts: 1, starts: 1, machine: Machine::of(&host, marks) }
    }

    /// The next life of who was kept, if it was kept on this machine; else somebody new. The marks are what tells this
    /// machine from others.
    #[must_use]
    pub fn next(kept: Option<&[u8]>, marks: &[Vec<u8>], random: [u8; 32]) -> Identity {
        let before = kept.and_then(Identity::read);
        let before = before.filter(|before| before.machine == Machine::of(&before.host, marks));
        let fresh = Identity::fresh(marks, random);
        let Some(before) = before else { return fresh };
        let starts = before.starts.saturating_add(1);
        Identity { starts, epoch: epoch(starts, split(random).1), ..before }
    }

    /// Whether it was nobody before.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.starts == 1
    }

    /// The same life under another name: somebody else goes by the old one.
    #[must_use]
    pub fn renamed(&self, host: Host, marks: &[Vec<u8>]) -> Identity {
        Identity { host, machine: Machine::of(&host, marks), ..*self }
    }

    /// To be kept.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.host);
        bytes.extend_from_slice(&self.machine.0);
        bytes.extend_from_slice(&self.starts.to_le_bytes());
        bytes.extend_from_slice(&self.hosts.to_le_bytes());
        bytes.extend_from_slice(&digest(&self.host, &[&bytes]));
        bytes
    }

    /// `None`: it is not what was kept. Of its life only the number is kept.
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
            machine: Machine(*machine),
        })
    }
}

impl Machine {
    fn of(host: &Host, marks: &[Vec<u8>]) -> Machine {
        let marks: Vec<&[u8]> = marks.iter().map(Vec::as_slice).collect();
        Machine(digest(host, &marks))
    }
}

/// Keyed with the name of the host, which only the file has: nobody learns from it which machine that was.
fn digest(host: &Host, parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = SipHasher13::new_with_key(host);
    for part in parts {
        hasher.write_u64(part.len() as u64);
        hasher.write(part);
    }
    hasher.finish128().as_bytes()
}

/// Lanes that begin anew count up from it, so there is room between two lives. Two machines that were started from one copy
/// differ by chance, so that one of them is the later one and the other hears of it.
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

/// A million lanes may begin anew in one life.
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
            assert!(next.epoch > before.epoch + (1 << 19), "lanes that began anew are of the life before");
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
        // One mark is not another of the same bytes in all.
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
