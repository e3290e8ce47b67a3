//! The library `struct` of the servers' Lua, which plain Lua 5.1 lacks.

use mlua::{Error, Lua, MultiValue, Result, String as Text, Value};

/// A part of a format: an integer, a string of a fixed length, or a string of the length read
/// before.
#[derive(Clone, Copy)]
enum Part {
    Unsigned(usize),
    Signed(usize),
    Chars(usize),
}

/// The parts of a format, whose numbers are little-endian.
struct Parts<'a>(&'a [u8]);

impl Iterator for Parts<'_> {
    type Item = Result<Part>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (letter, rest) = self.0.split_first()?;
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = str::from_utf8(&rest[..digits]).ok().and_then(|text| text.parse().ok());
            let sized = matches!(letter, b'i' | b'I' | b'c');
            self.0 = if sized { &rest[digits..] } else { rest };
            let part = match letter {
                b'<' => continue,
                b'B' => Part::Unsigned(1),
                b'H' => Part::Unsigned(2),
                b'i' => Part::Signed(number.unwrap_or(4)),
                b'I' => Part::Unsigned(number.unwrap_or(4)),
                b'c' => Part::Chars(number.unwrap_or(1)),
                other => return Some(fail(&format!("invalid format option '{}'", *other as char))),
            };
            return Some(match part {
                Part::Signed(size) | Part::Unsigned(size) if size == 0 || size > 8 => {
                    fail("integral size of the format is out of bounds")
                }
                part => Ok(part),
            });
        }
    }
}

fn fail<T>(text: &str) -> Result<T> {
    Err(Error::RuntimeError(text.to_owned()))
}

/// `struct.pack(format, values…)`
pub fn pack(lua: &Lua, (format, values): (Text, MultiValue)) -> Result<Text> {
    let (mut out, mut values) = (Vec::new(), values.into_iter());
    for part in Parts(&format.as_bytes()) {
        let part = part?;
        let value = values.next().unwrap_or(Value::Nil);
        match part {
            Part::Chars(size) => {
                let Some(text) = lua.coerce_string(value)? else { return fail("string expected") };
                let text = text.as_bytes();
                let size = if size == 0 { text.len() } else { size };
                let Some(text) = text.get(..size) else { return fail("string too short") };
                out.extend_from_slice(text);
            }
            Part::Signed(size) | Part::Unsigned(size) => {
                let Some(number) = lua.coerce_number(value)? else {
                    return fail("number expected");
                };
                out.extend_from_slice(&bytes_of(number)[..size]);
            }
        }
    }
    lua.create_string(out)
}

/// Returns the bytes of a number as C converts it: truncated, in two's complement.
#[allow(clippy::cast_possible_truncation, reason = "as in C")]
fn bytes_of(number: f64) -> [u8; 8] {
    let whole = if number < 0.0 { (number as i64).cast_unsigned() } else { number as u64 };
    whole.to_le_bytes()
}

/// `struct.unpack(format, text, from)`
pub fn unpack(lua: &Lua, (format, text, from): (Text, Text, Option<usize>)) -> Result<MultiValue> {
    let (text, mut at) = (text.as_bytes(), from.unwrap_or(1).saturating_sub(1));
    let mut values = Vec::new();
    for part in Parts(&format.as_bytes()) {
        let part = part?;
        let size = match part {
            Part::Chars(0) => match values.pop() {
                #[allow(clippy::cast_possible_truncation, reason = "a length below 2^53")]
                Some(Value::Number(size)) => size as usize,
                _ => return fail("format 'c0' needs a previous size"),
            },
            Part::Chars(size) | Part::Signed(size) | Part::Unsigned(size) => size,
        };
        let Some(bytes) = text.get(at..at + size) else { return fail("data string too short") };
        at += size;
        values.push(match part {
            Part::Chars(_) => Value::String(lua.create_string(bytes)?),
            Part::Signed(_) => Value::Number(number_of(bytes, true)),
            Part::Unsigned(_) => Value::Number(number_of(bytes, false)),
        });
    }
    #[allow(clippy::cast_precision_loss, reason = "a position in a short text")]
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

#[allow(clippy::cast_precision_loss, reason = "Lua's numbers are doubles")]
fn number_of(bytes: &[u8], signed: bool) -> f64 {
    let whole = bytes.iter().rev().fold(0, |whole: u64, byte| whole << 8 | u64::from(*byte));
    if signed {
        let unused = 64 - 8 * bytes.len();
        ((whole << unused).cast_signed() >> unused) as f64
    } else {
        whole as f64
    }
}
