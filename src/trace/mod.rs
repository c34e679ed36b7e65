//! TRACES: reads events from files, plays them to an engine in virtual time, compares and reports.

mod access_log;
pub mod course;
pub(crate) mod event;
pub(crate) mod json_line;
pub(crate) mod jsonl;
pub(crate) mod player;
pub(crate) mod recording;
pub(crate) mod report;
pub mod rule_records;
pub mod spread;
pub(crate) mod stage;
pub mod summary;
