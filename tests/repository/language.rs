//! Plain English in comments, documentation, messages and names.
//!
//! A documentation block starts with a noun phrase or a verb in the third person, not with a clause
//! such as "Whether …", and no text and no name uses a word that `tests/words.txt` replaces.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

/// Files and folders in which both rules hold.
const PLACES: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "DESIGN.md",
    ".github",
    "README.md",
    "RELEASE.md",
    "SECURITY.md",
    "benches",
    "examples",
    "fuzz/bodies",
    "fuzz/targets",
    "lua",
    "sim/src",
    "src",
    "tests",
];

/// The folder whose literals and pages name rows of published figures, in the words of those figures.
const FIGURES: &str = "benches";

const OPENERS: [&str; 10] =
    ["what", "whether", "how", "where", "who", "whoever", "whose", "those", "of", "so"];

/// One piece of prose and the line on which it starts.
#[derive(Debug, PartialEq)]
struct Prose {
    line: usize,
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    OuterDoc,
    InnerDoc,
    Comment,
    Literal,
    TestName,
    Page,
    /// The words of an identifier.
    Name,
}

impl Prose {
    fn is_doc(&self) -> bool {
        matches!(self.kind, Kind::OuterDoc | Kind::InnerDoc)
    }

    fn opens_with_a_clause(&self) -> bool {
        let text = self.text.to_lowercase();
        let mut words =
            text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let first = words.next().unwrap_or_default();
        OPENERS.contains(&first) || (first == "the" && words.next() == Some("same"))
    }
}

/// Reads the prose of a Rust source: comments, string literals with a space, names of tests.
struct Reader<'a> {
    rest: &'a str,
    line: usize,
    found: Vec<Prose>,
    /// The last line that held a comment and nothing else, to join the next one to it.
    comment_ends: usize,
    /// Nothing but blanks precedes on this line.
    starts_line: bool,
}

impl<'a> Reader<'a> {
    fn read(text: &'a str) -> Vec<Prose> {
        let mut reader =
            Self { rest: text, line: 1, found: Vec::new(), comment_ends: 0, starts_line: true };
        while !reader.rest.is_empty() {
            reader.step();
        }
        reader.found
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn step(&mut self) {
        let first = self.rest.chars().next().expect("not empty");
        if self.rest.starts_with("//") {
            self.comment();
        } else if first == '"' {
            self.literal();
        } else if first == 'r' && self.raw_hashes().is_some() {
            self.raw_literal();
        } else if first == '\'' {
            self.character();
        } else if self.rest.starts_with("#[test]") || self.rest.starts_with("#[tokio::test") {
            self.test_name();
        } else if first.is_alphabetic() || first == '_' {
            let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            // `r"` and `br"` open literals: leave them to the next step.
            let word = &self.rest[..end.unwrap_or(self.rest.len())];
            let raw = word == "br" && self.rest[1..].starts_with(['r']) && self.rest.len() > 2;
            if !raw {
                self.push(self.line, Kind::Name, words_of_name(word));
            }
            self.take(if raw { 1 } else { word.len() });
            self.starts_line = false;
        } else {
            self.take(first.len_utf8());
            self.starts_line = first == '\n' || (self.starts_line && first.is_whitespace());
        }
    }

    fn comment(&mut self) {
        let line = self.line;
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let text = self.take(end);
        let (kind, text) = if let Some(text) = text.strip_prefix("//!") {
            (Kind::InnerDoc, text)
        } else if let Some(text) = text.strip_prefix("///") {
            (Kind::OuterDoc, text)
        } else {
            (Kind::Comment, &text[2..])
        };
        let text = text.strip_prefix(' ').unwrap_or(text);
        // The comment above, without the names between.
        match self.found.iter_mut().rev().find(|it| it.kind != Kind::Name) {
            Some(last)
                if self.starts_line && last.kind == kind && self.comment_ends + 1 == line =>
            {
                last.text.push('\n');
                last.text.push_str(text);
            }
            _ => self.push(line, kind, text.to_owned()),
        }
        self.comment_ends = if self.starts_line { line } else { 0 };
    }

    fn literal(&mut self) {
        let line = self.line;
        self.take(1);
        let mut escaped = false;
        let end = self.rest.find(|c| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        let text = self.take(end.unwrap_or(self.rest.len()));
        let text = text.replace("\\n", "\n").replace("\\\n", " ");
        self.take(self.rest.len().min(1));
        self.push(line, Kind::Literal, text);
        self.starts_line = false;
    }

    fn raw_hashes(&self) -> Option<usize> {
        let hashes = self.rest[1..].find(|c| c != '#')?;
        self.rest[1 + hashes..].starts_with('"').then_some(hashes)
    }

    fn raw_literal(&mut self) {
        let line = self.line;
        let hashes = self.raw_hashes().unwrap_or_default();
        self.take(hashes + 2);
        let close = format!("\"{}", "#".repeat(hashes));
        let end = self.rest.find(&close).unwrap_or(self.rest.len());
        let text = self.take(end).to_owned();
        self.take(close.len().min(self.rest.len()));
        self.push(line, Kind::Literal, text);
        self.starts_line = false;
    }

    /// Takes a character, or the quote of a lifetime.
    fn character(&mut self) {
        let inside = &self.rest[1..];
        let length = match inside.chars().next() {
            Some('\\') => inside[2..].find('\'').map(|at| at + 4),
            Some(c) if inside[c.len_utf8()..].starts_with('\'') => Some(c.len_utf8() + 2),
            _ => None,
        };
        self.take(length.unwrap_or(1));
        self.starts_line = false;
    }

    fn test_name(&mut self) {
        let line = self.line;
        let name = self.rest.split_once("fn ").and_then(|(_, rest)| rest.split('(').next());
        self.push(line, Kind::TestName, name.unwrap_or_default().replace('_', " "));
        self.take(2);
    }

    fn push(&mut self, line: usize, kind: Kind, text: String) {
        if kind != Kind::Literal || text.trim().contains(char::is_whitespace) {
            self.found.push(Prose { line, kind, text });
        }
    }
}

/// Returns the words of a name such as `retry_after` or `RetryAfter`, with a space between.
fn words_of_name(name: &str) -> String {
    let mut words = String::new();
    let mut after_lower = false;
    for c in name.chars() {
        if c == '_' || (after_lower && c.is_uppercase()) {
            words.push(' ');
        }
        words.extend(c.to_lowercase().filter(|c| *c != '_'));
        after_lower = c.is_lowercase();
    }
    words
}

/// Reads the comments and names of a Lua script.
fn lua(text: &str) -> Vec<Prose> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (code, comment) = line.split_once("--").unwrap_or((line, ""));
        let mut push = |kind, text: String| found.push(Prose { line: index + 1, kind, text });
        push(Kind::Comment, comment.to_owned());
        let code = without(&without(code, '\'', '\''), '"', '"');
        let names = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        names.for_each(|name| push(Kind::Name, words_of_name(name)));
    }
    found
}

/// Reads the paragraphs of a Markdown page.
fn paragraphs(text: &str) -> Vec<Prose> {
    let mut found = Vec::<Prose>::new();
    let mut fenced = false;
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fence || fenced || line.trim().is_empty() {
            open = false;
        } else if let (true, Some(last)) = (open, found.last_mut()) {
            last.text.push('\n');
            last.text.push_str(line);
        } else {
            found.push(Prose { line: index + 1, kind: Kind::Page, text: line.to_owned() });
            open = true;
        }
    }
    found
}

/// The words of a text, in lower case with one space around each: without code, links and marks.
fn words(prose: &Prose) -> String {
    let mut fenced = false;
    let lines = prose.text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    });
    let text = lines.collect::<Vec<_>>().join(" ");
    let text = without(&text, '`', '`');
    let text = without(&text.replace("](", "\u{1}"), '\u{1}', ')');
    let text = if prose.kind == Kind::Literal { without(&text, '{', '}') } else { text };
    let text = text.to_lowercase().replace('’', "'");
    let words = text
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'')
        .filter(|word| !word.is_empty());
    format!(" {} ", words.collect::<Vec<_>>().join(" "))
}

/// Removes what stands between two marks, with the marks.
fn without(text: &str, open: char, close: char) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        let Some((_, after)) = after.split_once(close) else { break };
        kept.push_str(before);
        kept.push(' ');
        rest = after;
    }
    kept + rest
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Rust files, Lua scripts and Markdown pages of a folder, or the file itself.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let known = |path: &PathBuf| {
        let build = path.file_name().is_some_and(|name| name == "target");
        let read =
            path.extension().is_some_and(|it| ["lua", "md", "rs"].map(Some).contains(&it.to_str()));
        !build && (path.is_dir() || read)
    };
    paths.filter(known).flat_map(|path| files(&path)).collect()
}

fn prose(path: &Path) -> Vec<Prose> {
    let text = read(path);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => Reader::read(&text),
        Some("lua") => lua(&text),
        _ => paragraphs(&text),
    }
}

fn places() -> impl Iterator<Item = PathBuf> {
    PLACES.iter().flat_map(|place| files(&root().join(place)))
}

/// Places as `file:line`, for each block that opens with a clause.
fn openers(path: &Path) -> Vec<String> {
    let name = path.strip_prefix(root()).unwrap_or(path).display();
    prose(path)
        .iter()
        .filter(|block| block.is_doc() && block.opens_with_a_clause())
        .map(|block| format!("{name}:{}: {}", block.line, block.text.lines().next().unwrap_or("")))
        .collect()
}

/// Replaced words with what to write instead, and phrases that are fine.
struct List {
    replaced: Vec<(String, String)>,
    /// Words that only names may not have.
    names: Vec<(String, String)>,
    fine: Vec<String>,
    fine_names: Vec<String>,
}

impl List {
    fn read(text: &str) -> Self {
        let mut list = Self {
            replaced: Vec::new(),
            names: Vec::new(),
            fine: Vec::new(),
            fine_names: Vec::new(),
        };
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (forms, rest) = line.split_once(": ").expect("`words: replacement`");
            assert!(!rest.trim().is_empty(), "{line}: a replacement or a reason");
            if let Some(name) = forms.strip_prefix("fine name ") {
                list.fine_names.push(words_of_name(name));
                continue;
            }
            if let Some(phrase) = forms.strip_prefix("fine ") {
                list.fine.push(format!(" {} ", phrase.to_lowercase()));
                continue;
            }
            let (of_names, forms) = match forms.strip_prefix("name ") {
                Some(forms) => (true, forms),
                None => (false, forms),
            };
            let forms = forms.split(", ").map(|form| (format!(" {form} "), rest.to_owned()));
            if of_names { list.names.extend(forms) } else { list.replaced.extend(forms) }
        }
        list
    }

    fn find(&self, prose: &Prose) -> Vec<String> {
        let words = self.fine.iter().fold(words(prose), |text, fine| text.replace(fine, " … "));
        let is_name = prose.kind == Kind::Name;
        if is_name && self.fine_names.contains(&prose.text) {
            return Vec::new();
        }
        // `is_none` is a name of the standard library.
        let one_word = |it: &&(String, String)| !is_name || !it.0.trim().contains(' ');
        let names: &[_] = if is_name { &self.names } else { &[] };
        let replaced = self.replaced.iter().filter(one_word).chain(names);
        let found = replaced.filter(|(word, _)| words.contains(word.as_str()));
        found
            .map(|(word, instead)| {
                let at = words.find(word.as_str()).unwrap_or_default();
                let context: String = words[at..].chars().take(50).collect();
                format!("{}: …{context}…: write {instead}", prose.line)
            })
            .collect()
    }
}

#[test]
fn documentation_opens_with_a_noun_or_a_verb() {
    let found: Vec<_> = places().flat_map(|path| openers(&path)).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn text_uses_the_words_of_the_field() {
    let list = List::read(&read(&root().join("tests/words.txt")));
    let mut found = Vec::new();
    for path in places() {
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        let figures = name.starts_with(FIGURES);
        let code = name.starts_with("src") || name.starts_with("lua");
        let is_read = |kind| match kind {
            Kind::Literal | Kind::Page => !figures,
            Kind::Name => code,
            _ => true,
        };
        let mut names = HashSet::new();
        let mut is_new = |it: &Prose| it.kind != Kind::Name || names.insert(it.text.clone());
        for block in prose(&path).iter().filter(|it| is_read(it.kind) && is_new(it)) {
            found.extend(list.find(block).into_iter().map(|found| format!("{name}:{found}")));
        }
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn prose_of_a_source_is_comments_messages_and_names_of_tests() {
    let text = "//! A page.\n//! Two lines.\n\n/// One.\nfn f<'a>(c: &'a str) { // why\n    \
                let x = '\"'; g(\"no_prose\", \"some \\\"prose\\\"\", r#\"a \"raw\" one\"#);\n}\n\
                #[test]\nfn it_holds() {}\n";
    let found = Reader::read(text);
    let prose = found.iter().filter(|it| it.kind != Kind::Name);
    let found: Vec<_> = prose.map(|p| (p.line, p.kind, p.text.as_str())).collect();
    assert_eq!(
        found,
        [
            (1, Kind::InnerDoc, "A page.\nTwo lines."),
            (4, Kind::OuterDoc, "One."),
            (5, Kind::Comment, "why"),
            (6, Kind::Literal, "some \\\"prose\\\""),
            (6, Kind::Literal, "a \"raw\" one"),
            (8, Kind::TestName, "it holds"),
        ]
    );
}

#[test]
fn code_in_prose_is_left_out() {
    let text = "A [`Spoke`](spoke) that\n```\nspoke();\n```\nreads `spoke` in {spoke}.".to_owned();
    let mut block = Prose { line: 1, kind: Kind::OuterDoc, text };
    assert_eq!(words(&block), " a that reads in spoke ");
    block.kind = Kind::Literal;
    assert_eq!(words(&block), " a that reads in ");
    let page = paragraphs("# Head\n\ntext\n```\ncode\n```\nmore\nlines\n");
    let page: Vec<_> = page.iter().map(|p| (p.line, p.text.as_str())).collect();
    assert_eq!(page, [(1, "# Head"), (3, "text"), (7, "more\nlines")]);
}

#[test]
fn names_are_read_word_by_word() {
    let words = |found: Vec<Prose>| {
        let names = found.into_iter().filter(|it| it.kind == Kind::Name && !it.text.is_empty());
        names.map(|it| it.text).collect::<Vec<_>>()
    };
    let rust = "let spoke_at = RetryAfter::SPOKEN; // spoke\n\"spoke\";";
    assert_eq!(words(Reader::read(rust)), ["let", "spoke at", "retry after", "spoken"]);
    assert_eq!(words(lua("local spoke = 'spoke' -- spoke")), ["local", "spoke"]);
    let list = List::read("name spoke: says\n");
    let find = |kind| list.find(&Prose { line: 1, kind, text: "spoke at".into() }).len();
    assert_eq!((find(Kind::Name), find(Kind::Comment)), (1, 0));
}

#[test]
fn clauses_are_recognised_by_their_first_word() {
    let opens = |text: &str| {
        Prose { line: 1, kind: Kind::OuterDoc, text: text.to_owned() }.opens_with_a_clause()
    };
    assert!(
        opens("Whether it is set.") && opens("**What** it costs.") && opens("The same for two.")
    );
    assert!(!opens("The sameness.") && !opens("Returns what is left.") && !opens("Offers one."));
}

#[test]
fn words_match_whole_and_fine_phrases_are_skipped() {
    let list = List::read("# A comment.\nspoke, spoken: says\nfine spoke of a wheel: a part\n");
    let find = |text: &str| {
        list.find(&Prose { line: 7, kind: Kind::Comment, text: text.to_owned() }).len()
    };
    assert_eq!((find("Spoken\nout."), find("a Spoke of a wheel"), find("bespoke")), (1, 0, 0));
    assert_eq!((find("so spoke"), find("`spoke`")), (1, 0));
}
