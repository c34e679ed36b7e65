//! RESTARTS: what is kept on disk, so that a restart loses nothing. It decides nothing, and what is wrong here never stops
//! a start.

mod crashes;
mod directory;
mod keeper;
mod moment;
mod record;
mod regular;
mod small_file;
mod switches;
mod tables;
mod whole;

pub use crashes::{CRASH_LOOP_ENDS, CRASH_LOOP_SPAN, Crashes};
pub use directory::{Directory, LOCK_WAIT};
pub use keeper::{Keeper, Keeping, LAST_WRITE_MAX, WRITE_EVERY};
pub use moment::{BOOT_ID_FILE, Moment};
pub use record::{Record, StateFile, keep_evidence, set_aside};
pub use regular::open_regular;
pub use small_file::SmallFile;
pub use switches::{ORDERS_VERSION, OrdersRead, Unreadable, read_orders, write_orders};
pub use tables::{KeyBytes, PutBack, Stamp, Useless, VERSION, file_bytes_max, read_tables, write_tables};
pub use whole::{Whole, write_whole};
