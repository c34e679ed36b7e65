//! The grants among the replies that wait to be written: one that cannot be told is taken back. It writes nothing and ends
//! nothing itself.

/// Leases, each with where its reply ends; at most those of one turn.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<Grant>);

#[derive(Clone, Copy, Debug)]
struct Grant {
    lease: u64,
    /// Past everything, until its reply is whole.
    reply_end: usize,
}

impl Grants {
    /// A lease was granted; its reply is yet to be put into bytes.
    pub(super) fn add(&mut self, lease: u64) {
        self.0.push(Grant { lease, reply_end: usize::MAX });
    }

    /// The reply to the last one ends here.
    pub(super) fn end_at(&mut self, reply_end: usize) {
        if let Some(last) = self.0.last_mut() {
            last.reply_end = reply_end;
        }
    }

    /// So many bytes of the replies were written, and no more will be: the leases of which the other end does not know.
    pub(super) fn untold(&mut self, written: usize) -> impl Iterator<Item = u64> {
        self.0.drain(..).filter(move |grant| grant.reply_end > written).map(|grant| grant.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::Grants;

    #[test]
    fn what_was_not_written_to_its_last_byte_is_untold() {
        for (written, untold) in [
            (0, &[1, 2, 3][..]),
            (19, &[1, 2, 3]),
            (20, &[2, 3]),
            (99, &[2, 3]),
            (100, &[3]),
            // One that has no whole reply, however much was written.
            (usize::MAX - 1, &[3]),
        ] {
            let mut grants = Grants::default();
            grants.add(1);
            grants.end_at(20);
            grants.add(2);
            grants.end_at(100);
            grants.add(3);
            assert_eq!(grants.untold(written).collect::<Vec<_>>(), untold, "{written} bytes written");
            assert_eq!(grants.untold(0).count(), 0, "each is asked for once");
        }
    }
}
