//! The page of troubleshooting has an entry for each warning and error of the sources.

use std::collections::BTreeSet;

use crate::files::{read, root, sources};

/// The code of the sources, without comments, unit tests, and the test tools.
fn texts() -> Vec<String> {
    let tools = root().join("src/testing");
    let files = sources("src").into_iter().filter(|path| !path.starts_with(&tools));
    let code = |text: String| {
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.flat_map(|line| [line, "\n"]).collect()
    };
    files.map(|path| code(read(path))).collect()
}

/// The page, with one space between words.
fn page() -> String {
    let text = read("src/guide/troubleshooting.md");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The arguments of each call of `name`, up to the closing parenthesis outside of literals.
fn calls<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let arguments = |rest: &'a str| {
        let (mut depth, mut quoted, mut escaped) = (1, false, false);
        let end = rest.find(|c| {
            match c {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                '(' if !quoted => depth += 1,
                ')' if !quoted => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        &rest[..end.unwrap_or(rest.len())]
    };
    text.split(name).skip(1).filter_map(|rest| rest.strip_prefix('(')).map(arguments).collect()
}

/// The string literals of some code, with escaped quotes and continued lines resolved.
fn literals(code: &str) -> Vec<String> {
    let code = code.replace("\\\"", "\u{1}");
    let texts = code.split('"').skip(1).step_by(2).map(|text| {
        let text = text.replace("\\\n", " ").replace('\u{1}', "\"");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    texts.collect()
}

/// The first fixed phrase of at least three words: without values, and up to a punctuation mark.
fn phrase(message: &str) -> Option<String> {
    let fixed = message.split('{').enumerate().map(|(at, part)| match at {
        0 => part,
        _ => part.split_once('}').map_or("", |(_, fixed)| fixed),
    });
    let phrases = fixed.flat_map(|part| part.split([':', ';', ',', '('])).map(str::trim);
    phrases.filter(|it| it.split(' ').count() >= 3).map(str::to_owned).next()
}

/// The messages of warnings and errors in the log, and the names of lints.
fn logged(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut messages, mut lints) = (Vec::new(), Vec::new());
    for call in ["warn!", "error!", "warnings.push"] {
        for call in calls(text, call) {
            match call.split_once("lint = \"").and_then(|(_, rest)| rest.split('"').next()) {
                Some(lint) => lints.push(lint.to_owned()),
                None => messages.extend(literals(call).last().and_then(|it| phrase(it))),
            }
        }
    }
    (messages, lints)
}

#[test]
fn each_warning_in_the_log_has_an_entry() {
    let page = page();
    let mut found = 0;
    for text in texts() {
        let (messages, lints) = logged(&text);
        for message in &messages {
            assert!(page.contains(message.as_str()), "the page has no entry for {message:?}");
        }
        for lint in &lints {
            assert!(page.contains(&format!("| `{lint}` |")), "the page has no lint `{lint}`");
        }
        found += messages.len() + lints.len();
    }
    assert!(found > 10, "only {found} warnings were found");
}

/// An error type is named in backticks, possibly as a link.
#[test]
fn each_error_has_an_entry() {
    let page = page();
    let mut types = BTreeSet::new();
    for text in texts() {
        for line in text.lines().filter(|line| line.trim().starts_with("impl")) {
            let Some((_, rest)) = line.split_once("Error for ") else { continue };
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            types.insert(name.to_owned());
        }
    }
    assert!(types.len() >= 12, "{types:?}");
    for name in types {
        let named = [format!("`{name}`"), format!("::{name}`")];
        assert!(named.iter().any(|it| page.contains(it)), "the page has no entry for {name}");
    }
}

/// Returns `true` if the page has a section with this anchor.
fn has_section(anchor: &str) -> bool {
    let text = read("src/guide/troubleshooting.md");
    let headings = text.lines().filter_map(|line| line.strip_prefix("# "));
    let kept = |c: char| c.is_alphanumeric() || c == '-';
    headings
        .map(|it| it.to_lowercase().replace(' ', "-"))
        .any(|it| it.replace(|c| !kept(c), "") == anchor)
}

/// The macros of `log.rs` add the field `help`.
#[test]
fn each_warning_in_the_log_names_its_section() {
    let log = read("src/log.rs");
    let (_, help) = log.split_once("HELP: &str = \"guide::").expect("the field");
    let (page, anchor) = help.split('"').next().and_then(|it| it.split_once('#')).expect("a link");
    assert!(page == "troubleshooting" && has_section(anchor), "{page}#{anchor}");
    for text in texts().iter().filter(|text| !text.contains("macro_rules! warn_with_help")) {
        for direct in ["tracing::warn!", "tracing::error!", "tracing::{error", "tracing::{warn"] {
            assert!(!text.contains(direct), "use crate::log instead of {direct}");
        }
    }
}

/// The documentation of an error type links to the section of its entry.
#[test]
fn each_error_links_to_its_section() {
    const LINK: &str = "[troubleshooting](crate::guide::troubleshooting#";
    let mut found = 0;
    for path in sources("src") {
        let text = read(&path);
        for line in text.lines().filter(|line| line.trim().starts_with("impl")) {
            let Some((_, rest)) = line.split_once("Error for ") else { continue };
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            let forms = ["struct", "enum"].map(|kind| format!("pub {kind} {name}"));
            let defined = forms.iter().find_map(|form| text.find(form.as_str()));
            let (docs, _) = text.split_at(defined.unwrap_or_else(|| panic!("{name} is elsewhere")));
            let block = docs.rsplit("\n\n").next().unwrap_or_default();
            let anchor = block.split_once(LINK).and_then(|(_, rest)| rest.split(')').next());
            let anchor = anchor.unwrap_or_else(|| panic!("{name} has no link: {LINK}…)"));
            assert!(has_section(anchor), "{name}: {anchor}");
            found += 1;
        }
    }
    assert!(found >= 12, "only {found} errors were found");
}

/// The text of a response to a request without a usable key.
#[test]
fn each_reason_for_a_missing_or_unusable_key_has_an_entry() {
    let page = page();
    let mut reasons = BTreeSet::new();
    for text in texts() {
        let fixed = |text: &String| text.split('{').next().unwrap_or_default().trim().to_owned();
        for call in calls(&text, "KeyError::missing") {
            reasons.extend(literals(call).first().map(|what| format!("missing {}", fixed(what))));
        }
        for fault in text.split(": HeaderFault = ").skip(1) {
            let fault = literals(fault).swap_remove(0);
            let phrase = fault.split([',', ';']).next().unwrap_or_default();
            reasons.insert(phrase.trim().to_owned());
        }
    }
    assert!(reasons.len() >= 8, "{reasons:?}");
    for reason in reasons {
        assert!(page.contains(&reason), "the page has no entry for {reason:?}");
    }
}

#[test]
fn each_kind_of_redis_error_has_an_entry() {
    let page = page();
    let text = read("src/store/redis/error.rs");
    let arms = text.split("Self::").skip(1).filter_map(|arm| arm.split_once(" => \""));
    let kinds: Vec<_> = arms.filter_map(|(_, rest)| rest.split('"').next()).collect();
    assert!(kinds.len() >= 11, "{kinds:?}");
    for kind in kinds {
        assert!(page.contains(&format!("| `{kind}` |")), "the page has no kind `{kind}`");
    }
}
