//! What operators say to all hosts.

use tidegate::fleet::orders::{LIST_BYTES_MAX, News, OrdersCall, OrdersSaid, Stamp};

use super::{Kept, YEAR_AND_MORE_MS};

/// The one list, with its stamp before it.
#[derive(Clone, Debug, Default)]
pub(super) struct List(Option<Kept<Vec<u8>>>);

impl List {
    pub(super) fn call(&mut self, call: &OrdersCall, now_us: u64) -> OrdersSaid {
        let known = call.known;
        let number = Some(number_of(&known)).filter(|number| (0..COUNTED_MAX).contains(number)).unwrap_or(0);
        let kept = self.0.as_ref().and_then(|kept| kept.at(now_us)).cloned();
        let value = kept.as_ref().and_then(|kept| kept.split_first_chunk::<32>());
        let is_behind = value
            .is_none_or(|(stamp, _)| stamp[..16] == known[..16] && (number_of(stamp) as f64) < number as f64);
        let said = |news, stamp| OrdersSaid { news, now_us, stamp };
        if let Some(list) =
            call.put.as_ref().filter(|_| is_behind || value.is_some_and(|(stamp, _)| *stamp == known))
        {
            let mut stamp: Stamp = known;
            stamp[16..24].copy_from_slice(&(number + 1).to_le_bytes());
            stamp[24..].copy_from_slice(&now_us.to_le_bytes());
            self.0 = Some(Kept::new([&stamp[..], list].concat(), now_us, YEAR_AND_MORE_MS));
            return said(News::Written, stamp);
        }
        let answer = match value {
            _ if is_behind && number > 0 => said(News::Behind, known),
            None => said(News::Same, known),
            Some((stamp, _)) if *stamp == known => said(News::Same, known),
            Some((stamp, list)) if list.len() > LIST_BYTES_MAX => said(News::TooLong, *stamp),
            Some((stamp, list)) => said(News::Changed(list.to_vec()), *stamp),
        };
        if let Some(kept) = kept.filter(|kept| kept.len() >= 32) {
            self.0 = Some(Kept::new(kept, now_us, YEAR_AND_MORE_MS));
        }
        answer
    }

    pub(super) fn scribble(&mut self, bytes: Vec<u8>, now_us: u64) {
        self.0 = Some(Kept::new(bytes, now_us, YEAR_AND_MORE_MS));
    }

    pub(super) fn expire(&mut self, now_us: u64) {
        self.0 = self.0.take().filter(|kept| kept.at(now_us).is_some());
    }

    pub(super) fn string(&self) -> Option<(String, (Vec<u8>, u64))> {
        let kept = self.0.as_ref()?;
        Some(("tg:{tm}:orders".into(), (kept.value.clone(), kept.until_ms)))
    }
}

fn number_of(stamp: &Stamp) -> i64 {
    i64::from_le_bytes(stamp[16..24].try_into().unwrap())
}

const COUNTED_MAX: i64 = (1 << 53) - 1;
