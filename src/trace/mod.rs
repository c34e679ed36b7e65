//! TRACES: reads events from files, plays them to an engine in virtual time, compares and reports.

mod access_log;
mod course;
pub(crate) mod event;
pub(crate) mod json_line;
pub(crate) mod jsonl;
pub(crate) mod player;
pub(crate) mod recording;
pub(crate) mod report;
pub(crate) mod rule_records;
pub(crate) mod spread;
pub(crate) mod stage;
pub(crate) mod summary;
