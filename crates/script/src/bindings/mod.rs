//! BSON in JavaScript: the shell's types, and values in both directions.
//!
//! [`Bindings::install`] puts the types (`ObjectId`, `NumberLong`, `ISODate`, …) and `tojson`
//! into a context; `prelude.js` holds what needs no Rust. [`to_v8`] makes real objects and
//! arrays of BSON, [`from_v8`] goes back.
//!
//! What JavaScript cannot tell apart is remembered beside the value, so that it returns as it
//! came: an object or array that was read with 32-bit integers or symbols in it carries their
//! names under a symbol that scripts do not see in loops; a field that still holds an integer
//! becomes a 32-bit integer again. A number without such a memory is a double.

mod bytes;
mod from_v8;
mod natives;
mod strings;
mod to_v8;
mod types;

use std::cell::RefCell;
use std::rc::Rc;

pub use bytes::{Element, Elements, Malformed, text};
pub(crate) use natives::{tag_of, throw};

pub use from_v8::{append_value, document_from_v8, value_from_v8};
pub use to_v8::{ToV8, document_to_v8, value_to_v8};
pub use types::{Bindings, Type};

use crate::error::ConvertError;
use crate::evaluate::evaluate;
use strings::StringCache;
use types::{FIELDS, Origins, TYPES, TypeHandles};

impl From<Malformed> for ConvertError {
    fn from(_: Malformed) -> Self {
        ConvertError::Malformed
    }
}

impl Bindings {
    /// Puts the types into the scope's context. Later calls of the conversions in this isolate
    /// find the bindings through [`Bindings::of`].
    pub fn install(scope: &mut v8::HandleScope<'_>) -> Rc<Bindings> {
        let types = TYPES
            .iter()
            .map(|(_, name)| type_handles(scope, name))
            .collect();
        let description = v8::String::new(scope, "bson origin");
        let symbol = v8::Symbol::new(scope, description);
        let private = v8::Private::new(scope, None);
        let bindings = Rc::new(Bindings {
            types,
            origin: v8::Global::new(scope, symbol),
            exact: v8::Global::new(scope, private),
            names: RefCell::new(StringCache::of_names()),
            values: RefCell::new(StringCache::of_values()),
            origins: RefCell::new(Origins::default()),
            db_ref_prototype: RefCell::new(None),
            key_constructors: RefCell::new(Vec::new()),
        });
        scope.set_slot(bindings.clone());
        run_prelude(scope, &bindings);
        bindings
    }
}

fn type_handles(scope: &mut v8::HandleScope<'_>, name: &str) -> TypeHandles {
    let template = v8::FunctionTemplate::builder_raw(natives::not_constructible).build(scope);
    if let Some(name) = v8::String::new(scope, name) {
        template.set_class_name(name);
    }
    let instance = template.instance_template(scope);
    instance.set_internal_field_count(FIELDS);
    // A template that was only just made has a function unless memory is out, and then V8 has
    // ended the process.
    #[allow(clippy::expect_used)]
    let constructor = template
        .get_function(scope)
        .expect("a fresh template has a function");
    TypeHandles {
        instance: v8::Global::new(scope, instance),
        constructor: v8::Global::new(scope, constructor),
    }
}

/// The prelude is part of the program: that it does not run is a defect of the build, found by
/// every test of this crate.
#[allow(clippy::expect_used)]
fn run_prelude(scope: &mut v8::HandleScope<'_>, bindings: &Bindings) {
    let native = natives::object(scope, bindings);
    let prelude =
        evaluate(scope, "prelude", include_str!("prelude.js")).expect("the prelude compiles");
    let prelude = v8::Local::<v8::Function>::try_from(prelude).expect("the prelude is a function");
    let receiver = v8::undefined(scope).into();
    let db_ref = prelude
        .call(scope, receiver, &[native.into()])
        .expect("the prelude runs");
    let db_ref = v8::Local::<v8::Object>::try_from(db_ref).expect("the prelude gives a prototype");
    *bindings.db_ref_prototype.borrow_mut() = Some(v8::Global::new(scope, db_ref));
    let global = scope.get_current_context().global(scope);
    for (kind, name) in [(Type::MinKey, "MinKey"), (Type::MaxKey, "MaxKey")] {
        let name = v8::String::new(scope, name).expect("a short string");
        let constructor = global
            .get(scope, name.into())
            .expect("the prelude defines the keys");
        let constructor = v8::Global::new(scope, constructor);
        bindings
            .key_constructors
            .borrow_mut()
            .push((constructor, kind));
    }
}

#[cfg(test)]
mod tests;
