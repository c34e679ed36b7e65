//! Selects the socket that a service manager passes; the listener validates it.

use rustix::fd::OwnedFd;

use crate::server::Listener;
use crate::sys::{self, PassedDescriptor};

/// Returns the passed socket, ready to listen; `None`: none was passed, so the daemon makes its own.
pub(super) fn listener() -> Result<Option<Listener>, String> {
    let passed = sys::take_passed_descriptors().map_err(|error| {
        format!("the descriptors that were passed cannot be taken: {error}: LISTEN_FDS and LISTEN_FDNAMES must agree")
    })?;
    let Some((name, descriptor)) = choose(passed)? else { return Ok(None) };
    let unusable = |why| format!("the socket `{name}` was passed and cannot be used: {why}");
    Listener::from_passed(descriptor).map(Some).map_err(unusable)
}

/// Selects the descriptor with our name, or the only one under any name.
fn choose(passed: Vec<PassedDescriptor>) -> Result<Option<(String, OwnedFd)>, String> {
    let mut named: Vec<_> = passed.into_iter().map(|passed| (passed.name, passed.descriptor)).collect();
    let ours = named.iter().filter(|(name, _)| name == NAME).count();
    if ours == 1 {
        named.retain(|(name, _)| name == NAME);
    }
    if named.len() > 1 {
        let names = named.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "{} sockets were passed ({names}) and one is needed: write FileDescriptorName={NAME} in its unit, or pass no other",
            named.len()
        ));
    }
    Ok(named.pop())
}

/// The name in the packaged unit.
const NAME: &str = "clients";

#[cfg(test)]
mod tests {
    use super::choose;
    use crate::sys::PassedDescriptor;

    #[test]
    fn takes_named_socket_or_the_only_one() {
        type Row<'a> = (&'a [&'a str], Result<Option<&'a str>, ()>);
        let table: &[Row<'_>] = &[
            (&[], Ok(None)),
            (&["clients"], Ok(Some("clients"))),
            (&["unknown"], Ok(Some("unknown"))),
            (&["metrics", "clients", "other"], Ok(Some("clients"))),
            (&["a", "b"], Err(())),
            (&["clients", "clients"], Err(())),
        ];
        for (names, expected) in table {
            let passed = names.iter().map(|name| {
                let (descriptor, _) = std::os::unix::net::UnixStream::pair().unwrap();
                PassedDescriptor { descriptor: descriptor.into(), name: (*name).to_owned() }
            });
            let chosen = choose(passed.collect()).map(|chosen| chosen.map(|(name, _)| name)).map_err(drop);
            assert_eq!(chosen, expected.map(|name| name.map(str::to_owned)), "{names:?}");
        }
    }
}
