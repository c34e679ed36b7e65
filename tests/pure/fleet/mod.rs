//! Parts of the fleet sync without I/O.

mod host_count;
mod identity;
mod link_state;
mod replies;
mod rights;
