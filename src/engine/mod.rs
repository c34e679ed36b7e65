//! WHO IS ADMITTED: judge all, commit all.
