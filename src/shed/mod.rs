//! LOAD SHEDDING: readings in; shed probability, and the callers to refuse, out.
//!
//! One file per piece of arithmetic. Nothing here takes a reading, locks, logs, fails, allocates or reads a clock.
//! Missing, NaN or absurd readings never panic; in doubt requests are allowed.

pub mod brake;
pub mod claim;
pub mod draw;
pub mod heavy;
pub mod hint;
pub mod mapping;
pub mod queue_age;
pub mod slow_law;
pub mod window;

pub use brake::{Brake, band_slots};
pub use claim::{Claim, HostReadings, PoolLoad};
pub use draw::chance;
pub use heavy::HeavyCallers;
pub use slow_law::{Controller, SlowSeverity};
pub use window::UtilizationWindow;
