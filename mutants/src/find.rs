//! The places of a source file that can be changed.

use std::{env, ops::Range};

use proc_macro2::Span;
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprMatch, Item, ItemMod, Lit, Meta, MetaList, Pat,
    Signature, Stmt, Token, UnOp, punctuated::Punctuated, spanned::Spanned, visit, visit::Visit,
};

use crate::values::values;

/// One change: its name, and the code that replaces the place.
pub(crate) struct Change {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) code: String,
}

/// The form of a place, and of its changes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Form {
    Value,
    /// A statement, or the empty place before the first one of a function.
    Statement,
    /// The empty place of a guard, behind the pattern of an arm.
    Guard,
}

/// A part of a file with alternatives to it.
pub(crate) struct Place {
    /// The number of its first change.
    pub(crate) id: u32,
    pub(crate) form: Form,
    pub(crate) range: Range<usize>,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) changes: Vec<Change>,
}

/// Returns the places of a file, each before those within it, and its modules in other files. The
/// numbers of the changes continue from `last`.
pub(crate) fn find<'a>(
    text: &str,
    file: &'a syn::File,
    last: &mut u32,
) -> (Vec<Place>, Vec<&'a ItemMod>) {
    let mut finder =
        Finder { text, last, owner: None, function: String::new(), places: Vec::new() };
    finder.visit_file(file);
    let mut places = finder.places;
    places.sort_by_key(|place| (place.range.start, usize::MAX - place.range.end));
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && is_built(&module.attrs) => Some(module),
        _ => None,
    });
    (places, modules.collect())
}

/// Returns `false` for code that no build with all features contains, and for unit tests.
fn is_built(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|it| it.path().is_ident("cfg"));
    conditions.into_iter().all(|it| holds(&it.parse_args().expect("a condition")))
}

fn holds(condition: &Meta) -> bool {
    let parts = |list: &MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).expect("conditions")
    };
    match condition {
        Meta::Path(path) => path.is_ident("unix"),
        Meta::NameValue(it) if it.path.is_ident("feature") => true,
        Meta::NameValue(it) => {
            matches!(&it.value, Expr::Lit(it) if matches!(&it.lit, Lit::Str(it) if it.value() == env::consts::OS))
        }
        Meta::List(list) if list.path.is_ident("not") => !parts(list).iter().any(holds),
        Meta::List(list) if list.path.is_ident("any") => parts(list).iter().any(holds),
        Meta::List(list) => parts(list).iter().all(holds),
    }
}

struct Finder<'a> {
    text: &'a str,
    last: &'a mut u32,
    owner: Option<String>,
    function: String,
    places: Vec<Place>,
}

impl Finder<'_> {
    /// Returns the code of a node on one line, and its beginning if it is long.
    fn code(&self, node: &impl Spanned) -> String {
        let code = &self.text[node.span().byte_range()];
        let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
        code.char_indices().nth(70).map_or(code.clone(), |(end, _)| format!("{}…", &code[..end]))
    }

    fn add(&mut self, form: Form, span: Span, range: Range<usize>, changes: Vec<(String, String)>) {
        let id = *self.last + 1;
        let changes = changes.into_iter().map(|(name, code)| {
            *self.last += 1;
            Change { id: *self.last, name, code }
        });
        let changes: Vec<_> = changes.collect();
        if !changes.is_empty() {
            let start = span.start();
            let (line, column) = (start.line, start.column + 1);
            self.places.push(Place { id, form, range, line, column, changes });
        }
    }

    fn add_value(&mut self, node: &impl Spanned, changes: Vec<(String, String)>) {
        let span = node.span();
        let within = |(name, code)| (format!("{name} in {}", self.function), code);
        let changes = changes.into_iter().map(within).collect();
        self.add(Form::Value, span, span.byte_range(), changes);
    }

    /// Visits a function, and adds its early return. Constant functions cannot ask for a change.
    fn function(&mut self, signature: &Signature, block: &Block, visit: impl FnOnce(&mut Self)) {
        if signature.constness.is_some() {
            return;
        }
        let name = match &self.owner {
            Some(owner) => format!("{owner}::{}", signature.ident),
            None => signature.ident.to_string(),
        };
        let outer = std::mem::replace(&mut self.function, name);
        let opening = block.brace_token.span.open();
        let end = opening.byte_range().end;
        let body = self.text[end..block.brace_token.span.close().byte_range().start].trim();
        let result = match &signature.output {
            syn::ReturnType::Default => String::new(),
            syn::ReturnType::Type(_, result) => format!(" -> {}", self.code(result)),
        };
        let mut values = values(signature);
        values.retain(|value| !body.is_empty() && body != value && body != "Self::default()");
        let change = |value| {
            (format!("replace {}{result} with {value}", self.function), format!("return {value}"))
        };
        let changes = values.into_iter().map(change).collect();
        self.add(Form::Statement, signature.ident.span(), end..end, changes);
        visit(self);
        self.function = outer;
    }

    fn owned(&mut self, owner: String, visit: impl FnOnce(&mut Self)) {
        let outer = self.owner.replace(owner);
        visit(self);
        self.owner = outer;
    }

    fn operator(&mut self, node: &Expr, operator: &BinOp) {
        let range = node.span().byte_range();
        let at = operator.span().byte_range();
        let (name, others) = (self.code(operator), others(operator));
        let change = |other: &&str| {
            let (left, right) = (&self.text[range.start..at.start], &self.text[at.end..range.end]);
            (format!("replace {name} with {other}"), format!("{left}{other}{right}"))
        };
        let mut changes: Vec<_> = others.iter().map(change).collect();
        if name.len() > 1 && name.ends_with('=') && !["==", "!=", "<=", ">="].contains(&&*name) {
            changes.push((format!("delete {}", self.code(node)), "()".to_owned()));
        }
        self.add_value(node, changes);
    }

    fn arm(&mut self, arm: &Arm, has_default: bool) {
        if let Some((_, guard)) = &arm.guard {
            if !has_let(guard) {
                let code = self.code(guard);
                let change = |value: &str| {
                    (format!("replace match guard {code} with {value}"), value.to_owned())
                };
                self.add_value(guard, vec![change("true"), change("false")]);
            }
        } else if has_default && !matches!(arm.pat, Pat::Wild(_)) {
            let name = format!("delete match arm {} in {}", self.code(&arm.pat), self.function);
            let end = arm.pat.span().byte_range().end;
            self.add(Form::Guard, arm.pat.span(), end..end, vec![(name, "false".to_owned())]);
        }
    }
}

/// Returns `true` for a chain with `let`, which cannot be put in parentheses.
fn has_let(node: &Expr) -> bool {
    match node {
        Expr::Let(_) => true,
        Expr::Binary(it) => has_let(&it.left) || has_let(&it.right),
        _ => false,
    }
}

fn others(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) | BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["==", ">", "<="],
        BinOp::Gt(_) => &["==", "<", ">="],
        BinOp::Le(_) => &[">"],
        BinOp::Ge(_) => &["<"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) | BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::DivAssign(_) => &["%=", "*="],
        BinOp::RemAssign(_) => &["/=", "+="],
        BinOp::BitXorAssign(_) => &["|=", "&="],
        BinOp::BitAndAssign(_) => &["|=", "^="],
        BinOp::BitOrAssign(_) => &["&=", "^="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

/// A call whose value is unused.
fn is_call(node: &Expr) -> bool {
    match node {
        Expr::Call(_) | Expr::MethodCall(_) => true,
        Expr::Await(it) => is_call(&it.base),
        Expr::Try(it) => is_call(&it.expr),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, node: &'ast ItemMod) {
        if is_built(&node.attrs) {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let of = node.trait_.as_ref().map(|(_, path, _)| path);
        let is = |name: &str| {
            of.and_then(|of| of.segments.last()).is_some_and(|last| last.ident == name)
        };
        // The output of `Debug` is not a promise.
        if is_built(&node.attrs) && !is("Debug") && !is("Default") {
            let own = self.code(&node.self_ty);
            let owner = match of {
                Some(of) => format!("<impl {} for {own}>", self.code(of)),
                None => own,
            };
            self.owned(owner, |finder| visit::visit_item_impl(finder, node));
        }
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        if is_built(&node.attrs) {
            self.owned(node.ident.to_string(), |finder| visit::visit_item_trait(finder, node));
        }
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if is_built(&node.attrs) {
            let visit = |finder: &mut Self| visit::visit_item_fn(finder, node);
            self.function(&node.sig, &node.block, visit);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if is_built(&node.attrs) {
            let visit = |finder: &mut Self| visit::visit_impl_item_fn(finder, node);
            self.function(&node.sig, &node.block, visit);
        }
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(block) = node.default.as_ref().filter(|_| is_built(&node.attrs)) {
            let visit = |finder: &mut Self| visit::visit_trait_item_fn(finder, node);
            self.function(&node.sig, block, visit);
        }
    }

    fn visit_stmt(&mut self, node: &'ast Stmt) {
        if let Stmt::Expr(it, Some(_)) = node
            && is_call(it)
        {
            let name = format!("delete {} in {}", self.code(it), self.function);
            let span = node.span();
            self.add(Form::Statement, span, span.byte_range(), vec![(name, String::new())]);
        }
        visit::visit_stmt(self, node);
    }

    fn visit_expr(&mut self, node: &'ast Expr) {
        match node {
            Expr::Binary(it) if !has_let(node) => self.operator(node, &it.op),
            Expr::Assign(_) => {
                let name = format!("delete {}", self.code(node));
                self.add_value(node, vec![(name, "()".to_owned())]);
            }
            Expr::Unary(it) if !matches!(it.op, UnOp::Deref(_)) => {
                let name = format!("delete {}", self.code(&it.op));
                let code = self.text[it.expr.span().byte_range()].to_owned();
                self.add_value(node, vec![(name, code)]);
            }
            Expr::Lit(it) if is_built(&it.attrs) => {
                let Lit::Int(number) = &it.lit else { return };
                let Ok(value) = number.base10_parse::<u128>() else { return };
                let change = |other: u128| {
                    let other = format!("{other}{}", number.suffix());
                    (format!("replace {} with {other}", self.code(number)), other)
                };
                let others = [value.checked_add(1), value.checked_sub(1)];
                self.add_value(node, others.into_iter().flatten().map(change).collect());
            }
            Expr::Repeat(it) => return self.visit_expr(&it.expr),
            Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast ExprMatch) {
        self.visit_expr(&node.expr);
        let is_default = |arm: &Arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none();
        let has_default = node.arms.iter().any(is_default);
        for arm in node.arms.iter().filter(|arm| is_built(&arm.attrs)) {
            self.arm(arm, has_default);
            visit::visit_arm(self, arm);
        }
    }

    // Constants, whose value is known before the program runs.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
}
