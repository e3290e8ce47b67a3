//! The types and traits of other crates in the public interface.
//!
//! A major version of one of their crates is a breaking change of this one. The sources are read with
//! all features, as far as `lib.rs` reaches them. In the body of a macro, each type or trait counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path as FilePath, PathBuf},
};

use syn::{
    Attribute, Block, File, ImplItem, Item, ItemImpl, ItemMacro, ItemMod, Meta, Path, Type,
    UseName, UseRename, UseTree, Visibility,
    visit::{self, Visit},
};

/// The types and traits.
const ALLOWED: &str = "
    axum::Router axum::extract::FromRequestParts axum::extract::Request
    axum::response::IntoResponse axum::routing::Route
    bytes::Bytes
    governor::NotUntil governor::RateLimiter governor::clock::Clock
    governor::middleware::RateLimitingMiddleware governor::state::keyed::KeyedStateStore
    http::Extensions http::HeaderMap http::HeaderName http::HeaderValue http::Method http::Request
    http::Response http::StatusCode http::Uri http::Version http::request::Parts
    http_body::Body
    jiff::Timestamp jiff::ZonedDateTime
    redis::RedisConnectionInfo redis::RedisError redis::RedisResult redis::aio::ConnectionLike
    redis::aio::MultiplexedConnection
    serde::Deserialize serde::Serialize
    tokio::io::AsyncRead tokio::io::AsyncWrite
    tower::BoxError tower::Layer tower::Service
";

/// The maximum number of imports from a name to its meaning.
const MOST_STEPS: usize = 16;

/// Meaning of a name in a module.
enum Meaning {
    Import(Vec<String>),
    Item { public: bool },
    Alias(Type),
}

/// Result of following a path.
enum Target<'a> {
    /// A path of another crate.
    Foreign(String),
    Own {
        public: bool,
    },
    Alias {
        module: Vec<String>,
        meant: &'a Type,
    },
}

#[derive(Default)]
struct Module {
    items: Vec<Item>,
    names: BTreeMap<String, Vec<Meaning>>,
    /// The modules whose names are imported.
    globs: Vec<Vec<String>>,
    /// A module whose traits nobody else can name.
    sealed: bool,
}

/// The modules of a crate, by path.
struct Sources {
    /// The crates that it depends on.
    crates: BTreeSet<String>,
    modules: BTreeMap<Vec<String>, Module>,
}

fn join(path: &[String], more: &[String]) -> Vec<String> {
    [path, more].concat()
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Returns `true` for items that only tests have.
fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if attribute.path().is_ident("cfg") => {
            // proc_macro2 prints a space between a name and its parenthesis.
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => panic!("an item of a new kind: extend this test"),
    }
}

/// Returns the paths in a text of tokens.
fn paths(tokens: &str) -> Vec<Vec<String>> {
    // proc_macro2 prints spaces around the two colons.
    let text = tokens.replace(" :: ", "::");
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !is_part(c)).filter(|word| !word.is_empty());
    words.map(|word| word.split("::").map(str::to_owned).collect()).collect()
}

impl Sources {
    fn new(crates: BTreeSet<String>) -> Self {
        Self { crates, modules: BTreeMap::new() }
    }

    /// Reads the crate of this repository. This target belongs to `dev/`.
    fn of_this_crate() -> Self {
        let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml");
        let manifest: toml::Table = manifest.parse().expect("TOML");
        let dependencies = manifest["dependencies"].as_table().expect("a table");
        let mut sources =
            Self::new(dependencies.keys().map(|name| name.replace('-', "_")).collect());
        sources.read_file(Vec::new(), &root.join("src/lib.rs"), &root.join("src"));
        sources
    }

    fn read_file(&mut self, path: Vec<String>, file: &FilePath, folder: &FilePath) {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.read(path, parsed.items, folder);
    }

    /// Reads a module, whose modules are files of `folder`.
    fn read(&mut self, path: Vec<String>, items: Vec<Item>, folder: &FilePath) {
        let sealed = path.last().is_some_and(|name| name == "sealed");
        let mut module = Module { sealed, ..Module::default() };
        let mut pending = items;
        pending.reverse();
        while let Some(item) = pending.pop() {
            if is_of_tests(attributes(&item)) {
                continue;
            }
            match item {
                Item::Mod(inner) => self.read_inner(&path, inner, folder),
                Item::Macro(call) => match call.mac.parse_body::<File>() {
                    Ok(body) => pending.extend(body.items.into_iter().rev()),
                    Err(_) => module.items.push(Item::Macro(call)),
                },
                item => {
                    module.define(&item);
                    module.items.push(item);
                }
            }
        }
        for glob in &module.globs {
            assert!(!self.crates.contains(&glob[0]), "{glob:?}: import names instead of all");
        }
        self.modules.insert(path, module);
    }

    fn read_inner(&mut self, above: &[String], module: ItemMod, folder: &FilePath) {
        let name = module.ident.to_string();
        let path = join(above, std::slice::from_ref(&name));
        let inner = folder.join(&name);
        if let Some((_, items)) = module.content {
            return self.read(path, items, &inner);
        }
        let files: [PathBuf; 2] = [inner.with_extension("rs"), inner.join("mod.rs")];
        let file = files.iter().find(|file| file.exists());
        self.read_file(path, file.unwrap_or_else(|| panic!("no file for {name}")), &inner);
    }

    /// Follows a path that the code of a module names.
    fn follow(&self, module: &[String], path: &[String], steps: usize) -> Vec<Target<'_>> {
        assert!(steps < MOST_STEPS, "{path:?} in {module:?} goes round");
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        match first.as_str() {
            "crate" => return self.look_up(&[], rest, steps),
            "self" => return self.look_up(module, rest, steps),
            "super" => {
                let above = &module[..module.len() - 1];
                if rest.first().is_some_and(|next| next == "super") {
                    return self.follow(above, rest, steps);
                }
                return self.look_up(above, rest, steps);
            }
            _ => {}
        }
        let found = self.look_up(module, path, steps);
        if found.is_empty() && self.crates.contains(first) && !rest.is_empty() {
            return vec![Target::Foreign(path.join("::"))];
        }
        found
    }

    /// Follows a path that starts in a module.
    fn look_up(&self, module: &[String], path: &[String], steps: usize) -> Vec<Target<'_>> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        let inner = join(module, std::slice::from_ref(first));
        if self.modules.contains_key(&inner) {
            return self.look_up(&inner, rest, steps);
        }
        let Some(inside) = self.modules.get(module) else { return Vec::new() };
        let mut found = Vec::new();
        for meaning in inside.names.get(first).into_iter().flatten() {
            match meaning {
                // `use name;` of a macro or a crate; following it would go round.
                Meaning::Import(path) if path == std::slice::from_ref(first) => {}
                Meaning::Import(path) => {
                    found.extend(self.follow_import(module, &join(path, rest), steps + 1));
                }
                Meaning::Item { public } => found.push(Target::Own { public: *public }),
                Meaning::Alias(meant) => {
                    found.push(Target::Alias { module: module.to_owned(), meant });
                }
            }
        }
        if found.is_empty() {
            for glob in &inside.globs {
                found.extend(self.follow(module, &join(glob, path), steps + 1));
            }
        }
        found
    }

    /// Follows the path of an import. In `use metrics::metrics`, the first name is that of a crate, and also
    /// the name that the import defines: so the crate is tried first, or the import would lead to itself.
    fn follow_import(&self, module: &[String], path: &[String], steps: usize) -> Vec<Target<'_>> {
        if self.crates.contains(&path[0]) && !self.modules.contains_key(&join(module, &path[..1])) {
            return vec![Target::Foreign(path.join("::"))];
        }
        self.follow(module, path, steps)
    }

    /// Returns the foreign types and traits of the public interface, each with a module that names it.
    fn foreign_names(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for (path, module) in self.modules.iter().filter(|(_, module)| !module.sealed) {
            let mut names = Names { sources: self, module: path.clone(), found: &mut found };
            for item in &module.items {
                names.item(item);
            }
        }
        found
    }
}

impl Module {
    /// Records the names that an item defines or imports.
    fn define(&mut self, item: &Item) {
        let (name, public) = match item {
            Item::Use(item) => return self.import(Vec::new(), &item.tree),
            Item::Type(item) if !is_public(&item.vis) => {
                let meant = Meaning::Alias((*item.ty).clone());
                return self.names.entry(item.ident.to_string()).or_default().push(meant);
            }
            Item::Enum(item) => (&item.ident, is_public(&item.vis)),
            Item::Struct(item) => (&item.ident, is_public(&item.vis)),
            Item::Trait(item) => (&item.ident, is_public(&item.vis)),
            // Private ones are above.
            Item::Type(item) => (&item.ident, true),
            _ => return,
        };
        let public = public && !self.sealed;
        self.names.entry(name.to_string()).or_default().push(Meaning::Item { public });
    }

    /// Records the imports of a tree below `path`.
    fn import(&mut self, path: Vec<String>, tree: &UseTree) {
        let (name, target) = match tree {
            UseTree::Path(tree) => {
                return self.import(join(&path, &[tree.ident.to_string()]), &tree.tree);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(path.clone(), tree));
            }
            UseTree::Glob(_) => return self.globs.push(path),
            UseTree::Name(tree) if tree.ident == "self" => {
                (path.last().expect("a module").clone(), path)
            }
            UseTree::Name(tree) => (tree.ident.to_string(), join(&path, &[tree.ident.to_string()])),
            UseTree::Rename(tree) => {
                (tree.rename.to_string(), join(&path, &[tree.ident.to_string()]))
            }
        };
        self.names.entry(name).or_default().push(Meaning::Import(target));
    }
}

/// Collects the foreign names of public items.
struct Names<'a> {
    sources: &'a Sources,
    module: Vec<String>,
    found: &'a mut BTreeMap<String, String>,
}

impl Names<'_> {
    fn item(&mut self, item: &Item) {
        match item {
            Item::Const(item) if is_public(&item.vis) => self.visit_type(&item.ty),
            Item::Static(item) if is_public(&item.vis) => self.visit_type(&item.ty),
            Item::Fn(item) if is_public(&item.vis) => self.visit_signature(&item.sig),
            Item::Trait(item) if is_public(&item.vis) => self.visit_item_trait(item),
            Item::Type(item) if is_public(&item.vis) => self.visit_item_type(item),
            Item::Enum(item) if is_public(&item.vis) => {
                self.add_derives(&item.attrs);
                self.visit_item_enum(item);
            }
            Item::Struct(item) if is_public(&item.vis) => {
                self.add_derives(&item.attrs);
                self.visit_generics(&item.generics);
                for field in item.fields.iter().filter(|field| is_public(&field.vis)) {
                    self.visit_type(&field.ty);
                }
            }
            Item::Use(item) if is_public(&item.vis) => self.add_exports(&[], &item.tree),
            Item::Impl(item) => self.implementation(item),
            Item::Macro(item) => self.macro_body(item),
            _ => {}
        }
    }

    /// Adds what a path stands for, if another crate has it.
    fn add_path(&mut self, path: &[String]) {
        for target in self.sources.follow(&self.module, path, 0) {
            match target {
                Target::Foreign(name) => self.add_foreign(&name),
                Target::Own { .. } => {}
                Target::Alias { module, meant } => {
                    let mut inner = Names { sources: self.sources, module, found: self.found };
                    inner.visit_type(meant);
                }
            }
        }
    }

    /// Adds a name, cut after its first type, so that `StatusCode::OK` counts as `StatusCode`. A bare crate
    /// name is ignored.
    fn add_foreign(&mut self, name: &str) {
        let mut parts: Vec<&str> = name.split("::").collect();
        let is_type = |part: &&str| part.starts_with(char::is_uppercase);
        if let Some(at) = parts.iter().position(is_type) {
            parts.truncate(at + 1);
        }
        if parts.len() > 1 {
            self.found.insert(parts.join("::"), self.module.join("::"));
        }
    }

    fn add_derives(&mut self, attributes: &[Attribute]) {
        for attribute in attributes {
            let Meta::List(list) = &attribute.meta else { continue };
            let tokens = list.tokens.to_string();
            let derived = match attribute.path() {
                path if path.is_ident("derive") => &tokens[..],
                path if path.is_ident("cfg_attr") => {
                    tokens.split_once("derive").map_or("", |(_, derived)| derived)
                }
                _ => continue,
            };
            for path in paths(derived) {
                self.add_path(&path);
            }
        }
    }

    fn add_exports(&mut self, path: &[String], tree: &UseTree) {
        match tree {
            UseTree::Path(tree) => {
                self.add_exports(&join(path, &[tree.ident.to_string()]), &tree.tree);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_exports(path, tree);
                }
            }
            UseTree::Glob(_) => {}
            UseTree::Name(UseName { ident }) | UseTree::Rename(UseRename { ident, .. }) => {
                let path = join(path, &[ident.to_string()]);
                if path.len() == 1 && self.sources.crates.contains(&path[0]) {
                    self.found.insert(path[0].clone(), self.module.join("::"));
                }
                self.add_path(&path);
            }
        }
    }

    /// Returns `false` for a type that only this crate can name. `pub` means nameable outside: the lint
    /// `unreachable_pub` rejects other uses.
    fn is_public_type(&self, meant: &Type) -> bool {
        match meant {
            Type::Path(path) => self.is_public_path(&path.path),
            Type::Reference(reference) => self.is_public_type(&reference.elem),
            _ => true,
        }
    }

    fn is_public_path(&self, path: &Path) -> bool {
        let targets = self.sources.follow(&self.module, &segments(path), 0);
        !targets.iter().any(|target| matches!(target, Target::Own { public: false }))
    }

    fn implementation(&mut self, item: &ItemImpl) {
        if !self.is_public_type(&item.self_ty) {
            return;
        }
        if let Some((path, _)) = &item.trait_ {
            if self.is_public_path(path) {
                self.visit_generics(&item.generics);
                self.visit_path(path);
                self.visit_type(&item.self_ty);
                for item in &item.items {
                    if let ImplItem::Type(item) = item {
                        self.visit_type(&item.ty);
                    }
                }
            }
            return;
        }
        let mut public = false;
        for item in &item.items {
            match item {
                ImplItem::Const(item) if is_public(&item.vis) => self.visit_type(&item.ty),
                ImplItem::Fn(item) if is_public(&item.vis) => self.visit_signature(&item.sig),
                _ => continue,
            }
            public = true;
        }
        if public {
            self.visit_generics(&item.generics);
            self.visit_type(&item.self_ty);
        }
    }

    /// Adds the types and traits that the text of a macro names, in signatures or not.
    fn macro_body(&mut self, item: &ItemMacro) {
        for path in paths(&item.mac.tokens.to_string()) {
            if !path.iter().any(|name| name.starts_with(char::is_uppercase)) {
                continue;
            }
            for target in self.sources.follow(&self.module, &path, 0) {
                if let Target::Foreign(name) = target {
                    self.add_foreign(&name);
                }
            }
        }
    }
}

fn segments(path: &Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        self.add_path(&segments(path));
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_block(&mut self, _: &'ast Block) {}
}

#[test]
fn the_interface_has_only_these_types_of_other_crates() {
    let sources = Sources::of_this_crate();
    assert!(sources.modules.len() > 80, "{} modules", sources.modules.len());
    let allowed: BTreeSet<_> = ALLOWED.split_whitespace().collect();
    let found = sources.foreign_names();
    let gone: Vec<_> = allowed.iter().filter(|name| !found.contains_key(**name)).collect();
    assert!(gone.is_empty(), "no longer in the public interface: {gone:#?}");
    let new: Vec<_> = found.iter().filter(|(name, _)| !allowed.contains(name.as_str())).collect();
    assert!(new.is_empty(), "new in the public interface, by module: {new:#?}");
}

#[test]
fn exported_crates_and_arguments_of_an_implementing_type_are_found() {
    let text = "pub use redis; pub use http as web; impl Own<governor::Quota> { pub fn new() {} }";
    let mut sources = Sources::new(["governor", "http", "redis"].map(str::to_owned).into());
    sources.read(Vec::new(), syn::parse_file(text).expect("code").items, FilePath::new(""));
    assert!(sources.foreign_names().keys().eq(["governor::Quota", "http", "redis"]));
}
