//! RECORDINGS: decision threads queue requests and verdicts; another thread, which no decision waits for,
//! writes them as lines of a trace. Attribute values are hashed unless the recording asks for clear text.

mod digest;
mod recorder;
mod writer;

pub(crate) use digest::{RecordingKey, is_hashed};
pub(crate) use recorder::{EventOrigin, NotedKind, RecordReceiver, Recorder, SESSION_BYTES};
pub(crate) use writer::RecordingWriter;
