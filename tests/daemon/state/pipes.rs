//! Named pipes and directories at the paths of state files: no start blocks on a pipe.

use super::restarts::{end, plan, state};
use crate::prelude::*;

const FILES: &str =
    "tables switches rules rules-proven fleet-overrides fleet-identity fleet-versions hash-key crashes lock";

#[test]
fn starts_with_pipe_or_directory_in_place_of_state_file() {
    for name in FILES.split(' ') {
        for is_pipe in [true, false] {
            let plan = plan();
            let path = state(&plan).join(name);
            if is_pipe {
                make_pipe(&path);
            } else {
                fs::create_dir(&path).unwrap();
            }
            let daemon = plan.start();
            assert_eq!(daemon.greeted().allowed("u", 6), 5, "{name}, a pipe: {is_pipe}");
            end(daemon);
        }
    }
}
