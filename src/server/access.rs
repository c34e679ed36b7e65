//! Access of users to domains, by the settings. Users are numbers (uids) here, never names.

use tracing::warn;

use super::log_throttle::LogThrottle;
use crate::clock::Timestamp;

/// The domains that not every user may use.
#[derive(Debug, Default)]
pub struct DomainAccess {
    /// Sorted by name.
    restricted: Box<[RestrictedDomain]>,
    /// The domains in which a negative charge need not name the charge that it refunds, sorted.
    trusted_refunds: Box<[Box<str>]>,
    throttle: LogThrottle,
}

/// A domain and the users that may use it, sorted.
type RestrictedDomain = (Box<str>, Box<[u32]>);

impl DomainAccess {
    /// Makes the access from domains and their users. A domain without users, or not listed, is open to all.
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

    /// Sets the domains in which a negative charge need not name the charge that it refunds.
    #[must_use]
    pub fn with_trusted_refunds(mut self, domains: impl IntoIterator<Item = Box<str>>) -> DomainAccess {
        self.trusted_refunds = domains.into_iter().collect();
        self.trusted_refunds.sort_unstable();
        self
    }

    /// Whether a negative charge in a domain need not name the charge that it refunds.
    pub(super) fn trusts_refunds(&self, domain: &str) -> bool {
        self.trusted_refunds.binary_search_by(|name| (**name).cmp(domain)).is_ok()
    }

    /// Whether any domain is closed to this user. Checked once per connection, so that most requests need no check of
    /// their domain.
    pub(super) fn is_restricted(&self, user: u32) -> bool {
        self.restricted.iter().any(|(_, users)| users.binary_search(&user).is_err())
    }

    /// Whether this domain is open to this user.
    pub(super) fn is_open(&self, domain: &str, user: u32) -> bool {
        let found = self.restricted.binary_search_by(|(name, _)| (**name).cmp(domain));
        let users = found.ok().and_then(|index| self.restricted.get(index)).map(|(_, users)| users);
        users.is_none_or(|users| users.binary_search(&user).is_ok())
    }

    /// Logs a refused request: the application goes on without limits. The domain comes from the settings, so this logs
    /// no text of a client.
    pub(super) fn log_refusal(&self, domain: &str, user: u32, now: Timestamp) {
        if let Some(requests) = self.throttle.count_event(now) {
            warn!(
                domain,
                user,
                requests,
                "this domain is not open to this user: its requests are not checked; \
                 help: add the user to `domains.{domain}.uids`"
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
    fn restricted_domain_is_open_only_to_its_users() {
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
    fn user_is_restricted_when_any_domain_is_closed_to_it() {
        assert!(!DomainAccess::default().is_restricted(1000));
        assert!(!access(&[("open", &[])]).is_restricted(1000));
        let access = access(&[("a", &[1, 2]), ("b", &[2, 3])]);
        assert_eq!([1, 2, 3, 4].map(|user| access.is_restricted(user)), [true, false, true, true]);
    }
}
