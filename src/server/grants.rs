//! Leases granted in replies that are not written yet: a lease whose reply cannot be written is taken back by the caller.

/// Leases of one batch, each with the end of its reply.
#[derive(Debug, Default)]
pub(super) struct UnwrittenGrants(Vec<UnwrittenGrant>);

#[derive(Clone, Copy, Debug)]
struct UnwrittenGrant {
    lease: u64,
    /// The offset of the end of its reply; `usize::MAX` until the reply is encoded.
    reply_end: usize,
}

impl UnwrittenGrants {
    /// Adds a granted lease whose reply is not encoded yet.
    pub(super) fn add(&mut self, lease: u64) {
        self.0.push(UnwrittenGrant { lease, reply_end: usize::MAX });
    }

    /// Sets the end of the reply to the last lease.
    pub(super) fn set_reply_end(&mut self, reply_end: usize) {
        if let Some(last) = self.0.last_mut() {
            last.reply_end = reply_end;
        }
    }

    /// Removes all leases after `written` bytes of the replies were written. Returns those whose reply is incomplete.
    pub(super) fn drain_unwritten(&mut self, written: usize) -> impl Iterator<Item = u64> {
        self.0.drain(..).filter(move |grant| grant.reply_end > written).map(|grant| grant.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::UnwrittenGrants;

    #[test]
    fn drains_leases_with_incomplete_replies() {
        for (written, unwritten) in [
            (0, &[1, 2, 3][..]),
            (19, &[1, 2, 3]),
            (20, &[2, 3]),
            (99, &[2, 3]),
            (100, &[3]),
            // The last lease has no complete reply, however many bytes were written.
            (usize::MAX - 1, &[3]),
        ] {
            let mut grants = UnwrittenGrants::default();
            grants.add(1);
            grants.set_reply_end(20);
            grants.add(2);
            grants.set_reply_end(100);
            grants.add(3);
            let drained: Vec<_> = grants.drain_unwritten(written).collect();
            assert_eq!(drained, unwritten, "{written} bytes written");
            assert_eq!(grants.drain_unwritten(0).count(), 0, "each lease is returned once");
        }
    }
}
