//! Counts domains, attributes and distinct values of a trace, and guesses which attributes identify callers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Action, EventConsumer, Op, TraceEvent, TraceFailure};
use crate::engine::Descriptors;
use crate::rules::shown;
use crate::terms::{count, counted};
use crate::trace::rule_records::CallerSet;

#[derive(Debug, Default)]
pub(super) struct Census {
    domains: BTreeMap<Box<str>, DomainCensus>,
    values: usize,
}

#[derive(Debug, Default)]
struct DomainCensus {
    requests: u64,
    attributes: BTreeMap<Box<str>, Attribute>,
}

#[derive(Debug, Default)]
struct Attribute {
    requests: u64,
    values: CallerSet,
}

/// The attributes that identify a caller together.
pub(super) type CallerAttributes = Vec<Box<str>>;

/// Returns a fingerprint of the caller; `None` if the request lacks an attribute of the key.
pub(super) fn caller_of(key: &CallerAttributes, descriptors: &Descriptors<'_>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    for name in key {
        // As in rules: the first value of a name counts, and an empty value is absent.
        let found = descriptors.attributes.iter().find(|(attribute, _)| *attribute == &**name);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())?.hash(&mut hasher);
    }
    Some(hasher.finish())
}

impl EventConsumer for Census {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        let Action::Judge(request, _) = &event.action else { return Ok(()) };
        if request.op == Op::Peek {
            return Ok(());
        }
        let Some(domain) = entry(&mut self.domains, request.domain, DOMAINS_MAX) else { return Ok(()) };
        domain.requests += 1;
        for (name, value) in request.descriptors.attributes.iter().filter(|(_, value)| !value.is_empty()) {
            let Some(attribute) = entry(&mut domain.attributes, name, ATTRIBUTES_MAX) else { continue };
            attribute.requests += 1;
            let mut hasher = DefaultHasher::new();
            value.hash(&mut hasher);
            self.values += usize::from(attribute.values.note(hasher.finish(), self.values < VALUES_MAX));
        }
        Ok(())
    }
}

/// Returns the entry of a name. Adds it if there is room.
fn entry<'m, T: Default>(map: &'m mut BTreeMap<Box<str>, T>, name: &str, max: usize) -> Option<&'m mut T> {
    if !map.contains_key(name) && map.len() < max {
        map.insert(name.into(), T::default());
    }
    map.get_mut(name)
}

impl Attribute {
    fn distinct(&self) -> u64 {
        self.values.count().0
    }

    /// Returns a text such as `401 values`.
    fn describe(&self) -> String {
        let (distinct, more) = self.values.count();
        counted(distinct, "value") + if more { " or more" } else { "" }
    }

    /// Returns why it does not look like a caller; `None` if it does.
    fn is_no_caller(&self, name: &str, requests: u64) -> Option<&'static str> {
        let lower = name.to_lowercase();
        let is_named = |names: &str| names.split(' ').any(|known| lower == known);
        if self.distinct() < 2 {
            return Some("no spread");
        }
        if self.requests * ONE_IN_REQUESTS < requests {
            return Some("in few requests");
        }
        if is_named(CALLERS) {
            return None;
        }
        if is_named(NO_CALLERS) {
            return Some("of the request, not of the caller");
        }
        if self.distinct() < VALUES_MIN {
            return Some("few values");
        }
        if self.distinct() * REQUESTS_PER_VALUE > self.requests {
            return Some("its values hardly ever come twice");
        }
        None
    }
}

impl Census {
    /// Returns the requested domain, else the only one.
    pub(super) fn domain(&self, named: Option<&str>) -> Result<String, String> {
        let names: Vec<_> = self.domains.keys().map(|name| shown(name)).collect();
        match (named, names.len()) {
            (_, 0) => Err("no request in the trace: there is nothing to choose from".to_owned()),
            (Some(named), _) if self.domains.contains_key(named) => Ok(named.to_owned()),
            (Some(named), _) => {
                Err(format!("no request for the domain {}: there is {}", shown(named), names.join(", ")))
            }
            (None, 1) => Ok(self.domains.keys().next().map(ToString::to_string).unwrap_or_default()),
            (None, _) => {
                Err(format!("several domains in the trace: say which by --domain: {}", names.join(", ")))
            }
        }
    }

    /// Returns the requested keys, else every attribute that looks like a caller.
    pub(super) fn keys(
        &self,
        domain: &str,
        named: &[String],
        remarks: &mut Vec<String>,
    ) -> Result<Vec<CallerAttributes>, String> {
        let Some(domain) = self.domains.get(domain) else { return Ok(Vec::new()) };
        if named.is_empty() {
            return domain.callers(remarks);
        }
        let mut keys: Vec<CallerAttributes> = Vec::new();
        let mut even = Vec::new();
        for text in named {
            let key = domain.key(text)?;
            if key.iter().all(|name| domain.attributes.get(name).map_or(0, Attribute::distinct) < 2) {
                even.push(format!(
                    "every request has the same {}: one caller has no spread to choose a limit from; count by another \
                     attribute, or write `key: []` with what stands behind in mind",
                    shown(text)
                ));
            } else if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.is_empty() {
            return Err(even.join("\n"));
        }
        remarks.extend(even);
        Ok(keys)
    }
}

impl DomainCensus {
    /// Reads a key, of which each name is in a request.
    fn key(&self, text: &str) -> Result<CallerAttributes, String> {
        let name = |name: &str| match self.attributes.contains_key(name) {
            true => Ok(name.into()),
            false if self.attributes.is_empty() => {
                Err("no request names any attribute: its callers cannot be distinguished".to_owned())
            }
            false => {
                let there: Vec<_> = self.attributes.keys().map(|name| shown(name)).collect();
                Err(format!("no request names {}: there is {}", shown(name), there.join(", ")))
            }
        };
        text.split(',').map(str::trim).map(name).collect()
    }

    /// Returns every attribute that looks like a caller. Reports the omitted ones as remarks.
    fn callers(&self, remarks: &mut Vec<String>) -> Result<Vec<CallerAttributes>, String> {
        let mut left_out = String::new();
        let mut keys = Vec::new();
        for (name, attribute) in &self.attributes {
            match attribute.is_no_caller(name, self.requests) {
                None => keys.push(vec![name.clone()]),
                Some(why) => {
                    let apart = if left_out.is_empty() { "" } else { ", " };
                    let _ = write!(left_out, "{apart}{} ({}; {why})", shown(name), attribute.describe());
                }
            }
        }
        if keys.is_empty() {
            let what = if left_out.is_empty() { "there is none at all".to_owned() } else { left_out };
            return Err(format!("no attribute looks like a caller: {what}; name one by --key"));
        }
        if keys.len() > KEYS_MAX {
            remarks.push(format!(
                "of {} attributes that look like callers the first {KEYS_MAX}",
                count(keys.len() as u64)
            ));
            keys.truncate(KEYS_MAX);
        }
        if !left_out.is_empty() {
            remarks.push(format!("not counted by: {left_out}"));
        }
        Ok(keys)
    }
}

/// Names that identify callers, even with few values.
const CALLERS: &str = "user user_id userid account account_id ip address client client_id client_ip remote_addr api_key \
                       apikey org org_id organisation organization tenant tenant_id customer customer_id session \
                       session_id device device_id email project project_id";

/// Names that describe a request, even with many values.
const NO_CALLERS: &str = "method path route url uri endpoint action status user_agent referer referrer host plan \
                          version language country query";

/// Attributes with fewer values are kinds rather than callers.
const VALUES_MIN: u64 = 10;

/// Values that occur less often on average identify requests rather than callers.
const REQUESTS_PER_VALUE: u64 = 2;

/// A caller's attribute occurs in at least one request of this number.
const ONE_IN_REQUESTS: u64 = 100;

/// Further names are ignored. One descriptor has at most 16 attributes.
const ATTRIBUTES_MAX: usize = 64;

const DOMAINS_MAX: usize = 64;

/// More tables are rarely read.
const KEYS_MAX: usize = 4;

/// Stored values of all attributes together: 9 bytes each, in tables that are half empty at worst.
const VALUES_MAX: usize = 2_000_000;
