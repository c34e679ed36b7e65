//! The commands of operators, and crowds of callers.

use std::sync::Arc;

use tidegate::clock::Timestamp;
use tidegate::engine::{Alarm, BlockedKey, ControlEvent, KeyError, Switch, SwitchOrigin};
use tidegate::rules::Mode;

use super::{Ask, SECOND, Stage, Words, said};

impl Stage {
    /// The commands of operators.
    pub(super) fn operate(&mut self, command: &str, words: &Words<'_>) -> String {
        let (engine, attributes) = (Arc::clone(&self.bench.engine), words.attributes.as_slice());
        let by = SwitchOrigin::User(0);
        let done = |changed: Result<bool, KeyError>| changed.map_or_else(|error| error.to_string(), said);
        match command {
            "mode" => *self = Stage::new(words.arguments[0].parse().unwrap()),
            "off" => engine.set_off(true),
            "on" => engine.set_off(false),
            "switch" => {
                let (target, until) = (words.target(), words.until());
                let mode = words.arguments[1].parse().unwrap();
                let switched =
                    engine.set_switch(&Switch { target, mode, until, set_at: Timestamp::ORIGIN, by });
                return switched.map_or_else(|error| error.to_string(), |view| view.holds.to_string());
            }
            "clear" => return said(engine.clear_switch(&words.target())),
            "switches" => {
                let views = engine.switches().into_iter().map(|view| {
                    let configured = view.configured_mode.map_or("missing", Mode::name);
                    format!("{} ({configured}) {} by {:?}", view.switch.target, view.holds, view.switch.by)
                });
                return listed(views);
            }
            "block" => {
                let blocked = engine.block_key(&words.rule(), attributes, words.until().unwrap(), by);
                let text =
                    |key: BlockedKey| key.text.map_or("done".into(), |text| format!("done, shows {text}"));
                return blocked.map_or_else(|error| error.to_string(), text);
            }
            "unblock" => return done(engine.unblock_key(&words.rule(), attributes)),
            "reset" => return done(engine.reset_key(&words.rule(), attributes)),
            "events" => {
                return listed(engine.take_control_events().into_iter().map(|event| match event {
                    ControlEvent::Guard(Alarm { rule, callers, refused, after, shadow_until }) => {
                        let until = shadow_until
                            .map(|until| format!(", shadow until {} s", until.as_nanos() / SECOND));
                        format!("{rule}: {refused} of {callers} after {after:?}{}", until.unwrap_or_default())
                    }
                    event => format!("{event:?}").split('(').next().unwrap().to_owned(),
                }));
            }
            // Each of `callers` hits, and `twice` of them once more.
            "come" => {
                for caller in 0..words.number("callers", 0) {
                    let user = format!("user=u{caller}");
                    for _ in 0..=u32::from(caller < words.number("twice", 0)) {
                        self.bench.ask(self.micros, Ask::hit(&user, 1));
                    }
                }
            }
            "rest" => return if engine.is_at_rest() { "yes" } else { "no" }.to_owned(),
            "alarmed" => return if engine.is_alarm_of_rule(&words.rule()) { "yes" } else { "no" }.to_owned(),
            "name" => {
                let name = engine.find_rule_name(words.arguments.first().unwrap_or(&""));
                return name.map_or_else(|error| error.to_string(), |name| name.to_string());
            }
            _ => panic!("no command `{command}`"),
        }
        String::new()
    }
}

/// Texts between commas, or `none`.
fn listed(texts: impl Iterator<Item = String>) -> String {
    let texts = texts.collect::<Vec<_>>();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}
