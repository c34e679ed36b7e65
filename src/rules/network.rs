//! CIDR networks. A text that is not an address is in no network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::problem::{ValueProblem, shown};

/// The addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    /// No bit is set beyond the prefix.
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Makes a network; `None` if bits beyond the prefix are set or missing. IPv4-mapped becomes IPv4.
    pub fn new(address: IpAddr, bits: u8) -> Option<Network> {
        let (address, bits) = match (address.to_canonical(), address, bits.checked_sub(MAPPED_BITS)) {
            (IpAddr::V4(mapped), IpAddr::V6(_), Some(bits)) => (IpAddr::V4(mapped), bits),
            _ => (address, bits),
        };
        (bits <= width(address) && masked(address, bits) == address).then_some(Network { address, bits })
    }

    /// Parses `192.0.2.0/24` or `2001:db8::/32`.
    pub(crate) fn parse(text: &str) -> Result<Network, ValueProblem> {
        let Some((address, bits)) = text.split_once('/') else {
            return Err(match text.parse::<IpAddr>() {
                Ok(address) => {
                    let help = format!("write {text}/{} for this address alone", width(address));
                    ValueProblem::new(format!("the network {} has no prefix length", shown(text)), help)
                }
                Err(_) => ValueProblem::new(format!("{} is no network", shown(text)), EXAMPLE),
            });
        };
        let Ok(known) = address.parse::<IpAddr>() else {
            let message = format!("{} is no address in the network {}", shown(address), shown(text));
            return Err(ValueProblem::new(message, whole_address(address, bits)));
        };
        let digits =
            bits.bytes().all(|byte| byte.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
        let Some(length) = bits.parse().ok().filter(|length| digits && *length <= width(known)) else {
            let message = format!("{} is no prefix length in the network {}", shown(bits), shown(text));
            let help = match bits.parse::<Ipv4Addr>().map(|mask| u32::from(mask).leading_ones()) {
                Ok(ones) if known.is_ipv4() => format!("write {address}/{ones}"),
                _ => format!("write a number of bits from 0 to {}", width(known)),
            };
            return Err(ValueProblem::new(message, help));
        };
        Network::new(known, length).ok_or_else(|| {
            let (network, whole) = (masked(known, length), width(known));
            let message = format!("the network {} has bits set past its first {length}", shown(text));
            let help = format!("write {network}/{length} for the network, {known}/{whole} for the address");
            ValueProblem::new(message, help)
        })
    }

    pub(crate) fn holds(&self, value: &str) -> bool {
        address(value).is_some_and(|address| masked(address, self.bits) == self.address)
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    pub(crate) fn bits(&self) -> u8 {
        self.bits
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Parses an address. An IPv4-mapped one becomes IPv4.
#[inline]
pub(super) fn address(value: &str) -> Option<IpAddr> {
    value.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Keeps the first `bits` bits of an address. More bits than it has keep all.
#[inline]
pub(super) fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(bits)).unwrap_or_default();
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(bits)).unwrap_or_default();
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Suggests the full form of a short one such as `10.1/16`.
fn whole_address(address: &str, bits: &str) -> String {
    let missing = 3_usize.saturating_sub(address.matches('.').count());
    let whole = format!("{}{}", address.trim_end_matches('.'), ".0".repeat(missing));
    match whole.parse::<Ipv4Addr>() {
        Ok(whole) if bits.parse::<u8>().is_ok_and(|bits| bits <= 32) => format!("write {whole}/{bits}"),
        _ => EXAMPLE.to_owned(),
    }
}

const EXAMPLE: &str =
    "write an address and how many of its bits count, such as 192.0.2.0/24 or 2001:db8::/32";

/// Bits of an IPv6 address before an IPv4 address that is mapped into it.
const MAPPED_BITS: u8 = 96;
