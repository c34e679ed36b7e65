//! RECORDINGS: what is asked and what came of it, put aside by those who decide and written as the lines of a trace by
//! somebody whom no decision waits for. What the rules do not name of a caller is told as a digest alone.

mod digest;
mod disguise;
mod line;
mod noted;
mod recorder;
mod sessions;
mod words;
mod writer;

pub use digest::Key;
pub use disguise::{Disguise, Told};
pub use noted::{SESSION_BYTES, What, Who};
pub use recorder::{Busy, Recorder, Reel};
pub use writer::{Writer, Written};
