//! RECORDINGS: requests and their verdicts, queued by the decision threads and written as the lines of a trace by a thread
//! that no decision waits for. Values of attributes are hashed, unless the recording has them in clear.

mod digest;
mod line;
mod noted;
mod recorder;
mod sessions;
mod writer;

pub use digest::{Key, is_hashed};
pub use noted::{SESSION_BYTES, What, Who};
pub use recorder::{Busy, Recorder, Reel};
pub use writer::{Writer, Written};
