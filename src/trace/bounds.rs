//! Checks that a trace line is within the bounds of the socket, with the socket's error messages.
//!
//! Only the codec defines the bounds: a line not clearly within them is encoded as a frame and decoded.

use super::event::TraceLineError;
use super::json_line::{JsonLine, Quantity};
use crate::protocol::{
    DescriptorList, FRAME_BYTES_MAX, FrameSplit, IDEM_BYTES_MAX, RequestFrame, VALUE_BYTES_MAX,
    decode_request, encode_request, is_name, split_frame,
};

/// Checks a request; `bytes` is the length of its line.
pub(super) fn check(
    line: &JsonLine<'_>,
    bytes: usize,
    asked: &RequestFrame<'_>,
    descriptors: &DescriptorList<'_>,
) -> Result<(), TraceLineError> {
    if fits_plainly(line, bytes, descriptors) { Ok(()) } else { as_frame(asked, descriptors) }
}

/// Returns the error with which the socket would reject a request, if any.
pub(crate) fn refused_by_the_socket(
    asked: &RequestFrame<'_>,
    descriptors: &DescriptorList<'_>,
) -> Option<String> {
    as_frame(asked, descriptors).err().map(|wrong| wrong.to_string())
}

/// Whether all is clearly within bounds: `true` implies a valid frame, `false` implies nothing.
fn fits_plainly(line: &JsonLine<'_>, bytes: usize, descriptors: &DescriptorList<'_>) -> bool {
    let is_name_or_absent = |name: Option<&str>| name.is_none_or(is_name);
    // A frame is at most as long as the JSON, plus this overhead.
    bytes <= FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES
        && is_name_or_absent(line.domain.as_deref())
        && line.of.as_deref().is_none_or(|idem| (1..=IDEM_BYTES_MAX).contains(&idem.len()))
        && line.idem.as_deref().is_none_or(|idem| (1..=IDEM_BYTES_MAX).contains(&idem.len()))
        && line.cost.as_ref().is_none_or(has_plain_units)
        && line.amount.as_ref().is_none_or(has_plain_units)
        && descriptors.attributes().iter().all(|(key, value)| is_name(key) && value.len() <= VALUE_BYTES_MAX)
}

fn has_plain_units(quantity: &Quantity<'_>) -> bool {
    match quantity {
        Quantity::Requests(_) => true,
        Quantity::Units(units) => match units.as_slice() {
            [] => true,
            [(unit, _)] => is_name(unit),
            [(one, _), (other, _)] => is_name(one) && is_name(other) && **one != **other,
            _ => false,
        },
    }
}

#[cold]
fn as_frame(asked: &RequestFrame<'_>, descriptors: &DescriptorList<'_>) -> Result<(), TraceLineError> {
    let mut frame = Vec::new();
    encode_request(&mut frame, asked, descriptors).map_err(TraceLineError::TooLarge)?;
    let FrameSplit::Frame { payload, .. } = split_frame(&frame) else { return Ok(()) };
    decode_request(payload, &mut DescriptorList::new()).map(drop).map_err(TraceLineError::Bounds)
}

/// An upper bound for the id, the op, list lengths and options that a trace does not have.
const FRAME_OVERHEAD_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{as_frame, fits_plainly};
    use crate::protocol::{CheckRequest, CostField, DescriptorList, RequestFrame, RequestOptions};
    use crate::trace::json_line::JsonLine;

    fn text() -> impl Strategy<Value = String> {
        let awkward =
            prop::sample::select(vec!["", "a:b", "a/b", "é", "\u{85}", "\n", "\u{7f}", "user", "ü/"]);
        prop_oneof![awkward.prop_map(str::to_owned), "\\PC{0,70}", "[a-z]{60,66}"]
    }

    fn value() -> impl Strategy<Value = String> {
        (text(), prop_oneof![Just(1), Just(20), Just(600)]).prop_map(|(text, times)| text.repeat(times))
    }

    fn units() -> impl Strategy<Value = Vec<(String, u64)>> {
        prop::collection::vec((text(), 0..=u64::from(u32::MAX) + 1), 0..4)
    }

    proptest! {
        #[test]
        fn what_plainly_fits_is_taken_as_a_frame(
            (domain, priority, idem) in (text(), prop::option::of(text()), prop::option::of(text())),
            units in units(),
            pairs in prop::collection::vec((text(), value()), 0..8),
        ) {
            let flat: Vec<_> = pairs.iter().flat_map(|(key, value)| [key, value]).collect();
            let cost = units.iter().map(|(unit, cost)| format!("{}: {cost}", serde_json::json!(unit)));
            let json = format!(
                r#"{{"t": 0, "domain": {}, "priority": {}, "idem": {}, "descriptors": [{}], "cost": {{{}}}}}"#,
                serde_json::json!(domain), serde_json::json!(priority), serde_json::json!(idem),
                serde_json::json!(flat), cost.collect::<Vec<_>>().join(", "),
            );
            let line: JsonLine<'_> = serde_json::from_str(&json).unwrap();
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let units: Vec<_> = units.iter().map(|(unit, cost)| (unit.as_str(), *cost)).collect();
            let mut descriptors = DescriptorList::new();
            prop_assert!(descriptors.push(&pairs));
            let options = RequestOptions { idem: idem.as_deref().map(str::as_bytes), all: true, ..RequestOptions::default() };
            let cost = CostField::Units(units.as_slice().into());
            let judge = CheckRequest { cost, priority: priority.as_deref(), options, ..CheckRequest::new(0, &domain) };
            let taken = as_frame(&RequestFrame::Hit(judge), &descriptors);
            if fits_plainly(&line, json.len(), &descriptors) {
                prop_assert!(taken.is_ok(), "{json}: {taken:?}");
            }
        }
    }
}
