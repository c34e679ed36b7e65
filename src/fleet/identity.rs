//! The identity of this host: stable across restarts, unique among hosts, with an epoch that grows at each
//! start.
//!
//! The stored identity records the machine that wrote it. A host on another machine (a copied disk), or one
//! that cannot store its epoch, starts with a new identity.

use super::command::Host;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub host: Host,
    pub epoch: u64,
    /// The last known host count, used for shares until Redis reports a new one.
    pub hosts: u32,
    starts: u32,
    /// The digest of the machine's marks.
    machine: [u8; 16],
}

impl Identity {
    pub fn fresh(marks: &[Vec<u8>], (host, chance): (Host, [u8; 8])) -> Identity {
        Identity { host, epoch: epoch(1, chance), hosts: 1, starts: 1, machine: machine(&host, marks) }
    }

    /// The stored identity with the next epoch if this machine wrote it, else a new identity. `marks`
    /// distinguish this machine from others.
    pub fn next(kept: Option<&[u8]>, marks: &[Vec<u8>], random: (Host, [u8; 8])) -> Identity {
        let before = kept.and_then(Identity::read);
        let before = before.filter(|before| before.machine == machine(&before.host, marks));
        let fresh = Identity::fresh(marks, random);
        let Some(before) = before else { return fresh };
        let starts = before.starts.saturating_add(1);
        Identity { starts, epoch: epoch(starts, random.1), ..before }
    }

    pub fn is_new(&self) -> bool {
        self.starts == 1
    }

    /// The same epoch under another name, for a host whose name is taken by another.
    pub fn renamed(&self, host: Host, marks: &[Vec<u8>]) -> Identity {
        Identity { host, machine: machine(&host, marks), ..*self }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let (starts, hosts) = (self.starts.to_le_bytes(), self.hosts.to_le_bytes());
        let mut bytes = [MAGIC.as_slice(), &self.host, &self.machine, &starts, &hosts].concat();
        bytes.extend(digest(&self.host, &[&bytes]));
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
fn epoch(starts: u32, chance: [u8; 8]) -> u64 {
    (u64::from(starts) << LIFE_BITS) + u64::from_le_bytes(chance) % (1 << CHANCE_BITS)
}

const MAGIC: &[u8; 8] = b"tgfleet1";

const LIFE_BITS: u32 = 20;

const CHANCE_BITS: u32 = 19;
