//! BYTES: frames and messages.
