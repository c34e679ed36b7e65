//! A request that may wait for a call.

use crate::engine::admission::{Admission, Intent, admit};
use crate::engine::asking::Ticket;
use crate::engine::gate::Refusal;
use crate::engine::part::{Case, Part};
use crate::engine::request::{Op, Request};
use crate::limit::Outcome;
use arrayvec::ArrayVec;
use std::sync::Arc;
use std::time::Duration;

/// The ticket of a request that a call may help, as an error. What has more needs than a call takes is refused; and where the
/// pool sheds it anyway, nobody is to be asked.
#[cold]
#[inline(never)]
pub(super) fn before_asking(
    case: &Case<'_>,
    parts: &mut [Part],
    sheds: Option<Refusal>,
) -> Result<Admission, Arc<Ticket>> {
    if let Some(refusal) = sheds {
        parts.iter_mut().filter(|part| part.refuses()).for_each(|part| part.outcome = Outcome::Pass);
        return Ok(Admission::Shed(refusal));
    }
    let mut needs = ArrayVec::new();
    let mut patience = Duration::MAX;
    for (need, waits) in parts.iter().filter_map(|part| part.need(case)) {
        patience = patience.min(waits);
        if needs.try_push(need).is_err() {
            return Ok(admit(case, parts, Intent::Admit, &mut || None));
        }
    }
    Err(Arc::new(Ticket { needs, patience }))
}

/// What is to become of a request, and whether it may wait.
pub(super) fn intent(request: &Request<'_>) -> Intent {
    match request.op {
        Op::Peek => Intent::Look,
        _ if request.may_wait => Intent::AdmitOrAsk,
        _ => Intent::Admit,
    }
}
