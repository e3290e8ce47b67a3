//! The values that a function may return instead of its own.

use syn::{FnArg, GenericArgument, PathArguments, ReturnType, Signature, Type};

/// Returns the values for the result of a function. One that does not compile is dropped later.
pub(crate) fn values(signature: &Signature) -> Vec<String> {
    let ReturnType::Type(_, result) = &signature.output else { return vec!["()".to_owned()] };
    if let (Some(FnArg::Receiver(own)), Type::Path(path)) = (signature.inputs.first(), &**result)
        && path.path.is_ident("Self")
        && own.reference.is_none()
    {
        return vec!["self".to_owned()];
    }
    of_type(result)
}

fn of_type(of: &Type) -> Vec<String> {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    match of {
        Type::Path(path) => {
            let last = path.path.segments.last().expect("a name");
            let part = || of_part(&last.arguments);
            let within = |name: &str| part().iter().map(|it| format!("{name}({it})")).collect();
            match &*last.ident.to_string() {
                "bool" => texts(&["true", "false"]),
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => texts(&["0", "1"]),
                "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => texts(&["0", "1", "-1"]),
                "f32" | "f64" => texts(&["0.0", "1.0"]),
                "String" => texts(&["String::new()", "\"xyzzy\".into()"]),
                "Result" => within("Ok"),
                "Box" => within("Box::new"),
                "Option" => {
                    let mut values: Vec<_> = within("Some");
                    values.push("None".to_owned());
                    values
                }
                "Poll" => within("std::task::Poll::Ready"),
                _ => texts(&["Default::default()"]),
            }
        }
        Type::Tuple(tuple) => {
            let first = |it| of_type(it).into_iter().next();
            let parts: Option<Vec<_>> = tuple.elems.iter().map(first).collect();
            parts.into_iter().map(|parts| format!("({})", parts.join(", "))).collect()
        }
        Type::Reference(it) => match &*it.elem {
            Type::Path(path) if path.path.is_ident("str") => texts(&["\"\"", "\"xyzzy\""]),
            Type::Slice(_) => texts(&["&[]"]),
            _ => texts(&["Default::default()"]),
        },
        Type::ImplTrait(_) | Type::Never(_) => Vec::new(),
        _ => texts(&["Default::default()"]),
    }
}

fn of_part(arguments: &PathArguments) -> Vec<String> {
    let PathArguments::AngleBracketed(arguments) = arguments else {
        return vec!["Default::default()".to_owned()];
    };
    let first = arguments.args.iter().find_map(|it| match it {
        GenericArgument::Type(part) => Some(part),
        _ => None,
    });
    first.map_or_else(|| vec!["Default::default()".to_owned()], of_type)
}
