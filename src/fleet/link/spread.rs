//! Which of several independent servers a tag lives on: rendezvous hashing with a bound on each server's share. Every host of the
//! fleet must answer alike, so it depends on the texts of the URLs alone, not on their order. Shares are even,
//! and a fourth server moves 27 % of the buckets in the mean, more than 30 % with one set of names in a hundred.

use std::cmp::Reverse;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::url::Url;

/// Where each bucket lives.
#[derive(Debug)]
pub(super) struct Spread {
    texts: Vec<String>,
    /// The place of each bucket's server among the URLs.
    places: Vec<usize>,
}

impl Spread {
    pub(super) fn over(urls: &[Url]) -> Spread {
        let texts: Vec<String> = urls.iter().map(ToString::to_string).collect();
        let pairs = (0..BUCKETS).flat_map(|bucket| texts.iter().enumerate().map(move |at| (bucket, at)));
        let mut wishes: Vec<_> = pairs
            .map(|(bucket, (place, text))| {
                (Reverse(weight(&tag_of(bucket), text)), bucket, text.as_str(), place)
            })
            .collect();
        wishes.sort_unstable();
        let share = BUCKETS.div_ceil(texts.len().max(1));
        let (mut places, mut taken) = (vec![None; BUCKETS], vec![0; texts.len()]);
        // The strongest wish first, as long as its server has room.
        for (_, bucket, _, place) in wishes {
            if let (Some(of_bucket @ None), Some(taken)) = (places.get_mut(bucket), taken.get_mut(place))
                && *taken < share
            {
                (*of_bucket, *taken) = (Some(place), *taken + 1);
            }
        }
        let places = places.into_iter().map(Option::unwrap_or_default).collect();
        Spread { texts, places }
    }

    /// The place of a tag's server among the URLs.
    pub(super) fn place_of(&self, tag: &str) -> usize {
        let bucket = tag.strip_prefix('t').and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let of_bucket =
            bucket.filter(|bucket| tag_of(*bucket) == tag).and_then(|bucket| self.places.get(bucket));
        let strongest = || {
            let weighed = self.texts.iter().enumerate().map(|(place, text)| (weight(tag, text), text, place));
            weighed.max().map_or(0, |(.., place)| place)
        };
        of_bucket.copied().unwrap_or_else(strongest)
    }
}

fn tag_of(bucket: usize) -> String {
    format!("t{bucket:02x}")
}

/// The same on every host: nobody gains by finding a tag of a certain weight.
fn weight(tag: &str, url: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(tag.as_bytes());
    hasher.write_u8(0);
    hasher.write(url.as_bytes());
    hasher.finish()
}

/// As many as two hexadecimal digits tell apart.
const BUCKETS: usize = 256;
