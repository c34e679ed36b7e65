//! Which users may ask about which domains, as the settings say. It knows numbers of users, never who they are.

use std::sync::{Mutex, PoisonError};

use tracing::warn;

use super::word::Word;
use crate::clock::Timestamp;

/// The domains that are not open to every user whom the socket lets in.
#[derive(Debug, Default)]
pub struct DomainAccess {
    /// In order of their names.
    restricted: Box<[Restricted]>,
    /// The domains in which a negative charge need not name what it refunds, in order.
    trusting: Box<[Box<str>]>,
    word: Mutex<Word>,
}

/// A domain, and the users to whom it is open, in order.
type Restricted = (Box<str>, Box<[u32]>);

impl DomainAccess {
    /// Domains and the users who may ask about each. One without users is open to all, as is every other.
    #[must_use]
    pub fn new(domains: impl IntoIterator<Item = (Box<str>, Vec<u32>)>) -> DomainAccess {
        let restricted =
            domains.into_iter().filter(|(_, users)| !users.is_empty()).map(|(name, mut users)| {
                users.sort_unstable();
                (name, users.into_boxed_slice())
            });
        let mut restricted: Vec<_> = restricted.collect();
        restricted.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        DomainAccess { restricted: restricted.into_boxed_slice(), ..DomainAccess::default() }
    }

    /// The same, with domains in which a negative charge need not name what it refunds.
    #[must_use]
    pub fn trusting_refunds(mut self, domains: impl IntoIterator<Item = Box<str>>) -> DomainAccess {
        self.trusting = domains.into_iter().collect();
        self.trusting.sort_unstable();
        self
    }

    /// Whether a negative charge in a domain need not name what it refunds.
    pub(super) fn trusts_refunds(&self, domain: &str) -> bool {
        self.trusting.binary_search_by(|name| (**name).cmp(domain)).is_ok()
    }

    /// Whether some domain is closed to this user. Asked once for each connection: of nearly all there is no more to
    /// ask.
    pub(super) fn confines(&self, user: u32) -> bool {
        self.restricted.iter().any(|(_, users)| users.binary_search(&user).is_err())
    }

    /// Whether this domain is open to this user.
    pub(super) fn is_open(&self, domain: &str, user: u32) -> bool {
        let found = self.restricted.binary_search_by(|(name, _)| (**name).cmp(domain));
        let users = found.ok().and_then(|index| self.restricted.get(index)).map(|(_, users)| users);
        users.is_none_or(|users| users.binary_search(&user).is_ok())
    }

    /// Says in the log that somebody was turned away, for his requests go on without limits. The domain is one of the
    /// settings, so this is no text of a caller.
    pub(super) fn tell(&self, domain: &str, user: u32, now: Timestamp) {
        let due = self.word.lock().unwrap_or_else(PoisonError::into_inner).is_due(now);
        if let Some(requests) = due {
            warn!(
                domain,
                user,
                requests,
                "this domain is not open to this user: what it asks is not judged; \
                 put the user into `domains.{domain}.uids` if it should be"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DomainAccess;

    fn access(domains: &[(&str, &[u32])]) -> DomainAccess {
        DomainAccess::new(domains.iter().map(|(name, users)| ((*name).into(), users.to_vec())))
    }

    #[test]
    fn a_domain_is_open_to_its_users_and_every_other_domain_to_all() {
        let access = access(&[("mail", &[33, 0, 1000]), ("open", &[]), ("api", &[1000])]);
        let table = [
            ("mail", 0, true),
            ("mail", 33, true),
            ("mail", 1000, true),
            ("mail", 34, false),
            ("api", 1000, true),
            ("api", 0, false),
            ("open", 34, true),
            ("elsewhere", 34, true),
            ("", 34, true),
            ("mai", 34, true),
        ];
        for (domain, user, open) in table {
            assert_eq!(access.is_open(domain, user), open, "{domain} {user}");
        }
    }

    #[test]
    fn only_who_meets_a_closed_domain_is_confined() {
        assert!(!DomainAccess::default().confines(1000));
        assert!(!access(&[("open", &[])]).confines(1000));
        let access = access(&[("a", &[1, 2]), ("b", &[2, 3])]);
        assert_eq!([1, 2, 3, 4].map(|user| access.confines(user)), [true, false, true, true]);
    }
}
