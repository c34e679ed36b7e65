//! The Redis that hosts of a simulation share: runs their commands with the scripts of the daemon.

use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::reply::ScriptReply;
use virtual_redis::VirtualRedis;

#[derive(Clone, Debug, Default)]
pub struct Store(pub VirtualRedis);

impl Store {
    /// Executes one command at this time; returns its reply.
    pub fn execute(&mut self, command: &ScriptCommand, now_us: u64) -> ScriptReply {
        let encoded = command.encode();
        let bytes = self.0.run(encoded.script.text, &encoded.keys, &encoded.args, now_us);
        let (reply, clamped) = ScriptReply::decode(command, &bytes).unwrap();
        assert_eq!(clamped, 0, "{command:?}: {reply:?}");
        reply
    }

    pub fn flush(&mut self) {
        *self = Store::default();
    }
}
