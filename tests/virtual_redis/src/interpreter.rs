//! Runs scripts as Redis does: Lua 5.1 with `redis.call`, `redis.error_reply` and `struct`.

use std::cell::RefCell;
use std::mem;

use foldhash::{HashMap, HashMapExt};
use mlua::{BString, Function, IntoLua, Lua, LuaOptions, LuaString, Result, StdLib, Table, Value, Variadic};

use crate::keys::{self, Keys, Reply};
use crate::numbers;

thread_local! {
    /// One for each thread, as it compiles a script once.
    static INTERPRETER: Interpreter = Interpreter::new().unwrap();
}

struct Interpreter {
    lua: Lua,
    /// Compiled scripts by the address of their text.
    scripts: RefCell<HashMap<*const u8, Function>>,
}

/// What `redis.call` works on while a script runs.
struct Server {
    keys: Keys,
    now_us: u64,
}

/// Runs a script with `KEYS` and `ARGV` over these keys. Panics at an error.
pub(crate) fn run(script: &'static str, words: [&[Vec<u8>]; 2], keys: &mut Keys, now_us: u64) -> Vec<u8> {
    INTERPRETER.with(|interpreter| {
        let lua = &interpreter.lua;
        lua.set_app_data(Server { keys: mem::take(keys), now_us });
        let reply = interpreter.set_arguments(words).and_then(|()| interpreter.compile(script)?.call(()));
        *keys = lua.remove_app_data::<Server>().unwrap().keys;
        match reply {
            Ok(Value::String(bytes)) => bytes.as_bytes().to_vec(),
            other => panic!("{other:?} to {words:?}"),
        }
    })
}

impl Interpreter {
    fn new() -> Result<Interpreter> {
        let lua = Lua::new_with(StdLib::MATH | StdLib::STRING | StdLib::TABLE, LuaOptions::default())?;
        let redis = lua.create_table()?;
        redis.set("call", lua.create_function(call)?)?;
        redis.set("error_reply", lua.create_function(error_reply)?)?;
        lua.globals().set("redis", redis)?;
        let numbers = lua.create_table()?;
        numbers.set("pack", lua.create_function(pack)?)?;
        numbers.set("unpack", lua.create_function(unpack)?)?;
        lua.globals().set("struct", numbers)?;
        Ok(Interpreter { lua, scripts: RefCell::new(HashMap::new()) })
    }

    fn set_arguments(&self, [keys, arguments]: [&[Vec<u8>]; 2]) -> Result<()> {
        for (name, words) in [("KEYS", keys), ("ARGV", arguments)] {
            let words = words.iter().map(|word| self.lua.create_string(word)).collect::<Result<Vec<_>>>()?;
            self.lua.globals().set(name, words)?;
        }
        Ok(())
    }

    fn compile(&self, script: &'static str) -> Result<Function> {
        let mut scripts = self.scripts.borrow_mut();
        if let Some(function) = scripts.get(&script.as_ptr()) {
            return Ok(function.clone());
        }
        let function = self.lua.load(script.strip_prefix("#!lua\n").unwrap()).into_function()?;
        scripts.insert(script.as_ptr(), function.clone());
        Ok(function)
    }
}

/// Numbers among the words have at most 14 digits, so that Lua formats them as Redis does.
fn call(lua: &Lua, words: Variadic<BString>) -> Result<Reply> {
    let mut server = lua.app_data_mut::<Server>().unwrap();
    let now_us = server.now_us;
    let words = Vec::from(words);
    let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    Ok(keys::call(&mut server.keys, &words, now_us))
}

fn error_reply(lua: &Lua, message: LuaString) -> Result<Table> {
    lua.create_table_from([("err", message)])
}

fn pack(lua: &Lua, (format, numbers): (BString, Variadic<f64>)) -> Result<LuaString> {
    lua.create_string(numbers::pack(&format, &numbers))
}

fn unpack(_: &Lua, (format, bytes, at): (BString, LuaString, Option<usize>)) -> Result<Variadic<f64>> {
    Ok(numbers::unpack(&format, &bytes.as_bytes(), at.unwrap_or(1)).into())
}

impl IntoLua for Reply {
    fn into_lua(self, lua: &Lua) -> Result<Value> {
        match self {
            Reply::Nil => Ok(Value::Boolean(false)),
            Reply::Number(number) => number.into_lua(lua),
            Reply::Text(text) => lua.create_string(text)?.into_lua(lua),
            Reply::List(replies) => lua.create_sequence_from(replies)?.into_lua(lua),
        }
    }
}
