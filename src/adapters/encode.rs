//! Frames of requests, whose values are shortened as every client does: the length of a value refuses no request.

use std::borrow::Cow;

use crate::protocol::{DescriptorList, RequestFrame, encode_request, shorten, shorten_value};

/// The names and values of one descriptor.
pub(super) type Pairs<'t> = Vec<(&'t str, Cow<'t, str>)>;

/// Returns the frame of a request, or a message for the client. Long values are cut; if the frame is still too large, the
/// longest become digests.
pub(super) fn fitting(
    request: &RequestFrame<'_>,
    mut descriptors: Vec<Pairs<'_>>,
) -> Result<Vec<u8>, String> {
    for (_, value) in descriptors.iter_mut().flatten() {
        if let Cow::Owned(shortened) = shorten_value(value) {
            *value = shortened.into();
        }
    }
    loop {
        let mut frame = Vec::new();
        let Err(error) = encode_request(&mut frame, request, &listed(&descriptors)?) else {
            return Ok(frame);
        };
        // Of equally long ones the first, as every client does: `max_by_key` returns the last.
        let values = descriptors.iter_mut().flatten().map(|(_, value)| value).rev();
        match values.max_by_key(|value| value.len()).filter(|value| value.len() > DIGEST_BYTES) {
            Some(longest) => *longest = shorten(longest, DIGEST_BYTES, 0).into_owned().into(),
            None => return Err(error.to_string()),
        }
    }
}

fn listed<'t>(descriptors: &'t [Pairs<'_>]) -> Result<DescriptorList<'t>, String> {
    let mut list = DescriptorList::new();
    for descriptor in descriptors {
        let pairs: Vec<(&str, &str)> = descriptor.iter().map(|(key, value)| (*key, &**value)).collect();
        if !list.push(&pairs) {
            return Err("a request has at most 8 descriptors of at most 16 attributes".to_owned());
        }
    }
    Ok(list)
}

/// A tilde and 32 digits.
const DIGEST_BYTES: usize = 33;

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::{Pairs, fitting};
    use crate::protocol::{FRAME_BYTES_MAX, HEADER_BYTES, RequestFrame};

    /// As many long values as a request has.
    #[test]
    fn shortens_values_until_they_fit() {
        let value = "v".repeat(5_000);
        let descriptor = || (0..16).map(|_| ("key", Cow::Borrowed(&*value))).collect::<Pairs<'_>>();
        for descriptors in 1..=8 {
            let frame =
                fitting(&RequestFrame::hit(1, "api"), (0..descriptors).map(|_| descriptor()).collect());
            let length = frame.unwrap().len();
            assert!(length <= FRAME_BYTES_MAX + HEADER_BYTES, "{descriptors}: {length}");
        }
        assert!(fitting(&RequestFrame::hit(1, "api"), (0..9).map(|_| descriptor()).collect()).is_err());
    }
}
