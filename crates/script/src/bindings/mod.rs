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

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

pub use bytes::{Element, Elements, Malformed};
pub(crate) use natives::{tag_of, throw};

pub use from_v8::{append_value, document_from_v8, value_from_v8};
pub use to_v8::{ToV8, document_to_v8, value_to_v8};

use crate::error::ConvertError;
use crate::evaluate::evaluate;
use strings::StringCache;

impl From<Malformed> for ConvertError {
    fn from(_: Malformed) -> Self {
        ConvertError::Malformed
    }
}

/// The types that only BSON has. The numbers are the tags of their instances and are known to
/// the prelude by the names in [`TYPES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    ObjectId = 1,
    NumberLong,
    NumberInt,
    NumberDecimal,
    BinData,
    Timestamp,
    MinKey,
    MaxKey,
    Code,
    DbPointer,
}

const TYPES: [(Type, &str); 10] = [
    (Type::ObjectId, "ObjectId"),
    (Type::NumberLong, "NumberLong"),
    (Type::NumberInt, "NumberInt"),
    (Type::NumberDecimal, "NumberDecimal"),
    (Type::BinData, "BinData"),
    (Type::Timestamp, "Timestamp"),
    (Type::MinKey, "MinKey"),
    (Type::MaxKey, "MaxKey"),
    (Type::Code, "Code"),
    (Type::DbPointer, "DBPointer"),
];

/// An instance holds its tag, its payload, and for some types a second value.
const FIELD_TAG: usize = 0;
const FIELD_PAYLOAD: usize = 1;
const FIELD_SECOND: usize = 2;
const FIELDS: usize = 3;

struct TypeHandles {
    instance: v8::Global<v8::ObjectTemplate>,
    constructor: v8::Global<v8::Function>,
}

/// What the conversions need of a context: templates, symbols, strings made before.
pub struct Bindings {
    types: Vec<TypeHandles>,
    /// Key of the memory of [`Origins`].
    origin: v8::Global<v8::Symbol>,
    /// Key of the exact form of a regular expression or date that JavaScript cannot hold.
    exact: v8::Global<v8::Private>,
    names: RefCell<StringCache>,
    values: RefCell<StringCache>,
    origins: RefCell<Origins>,
    db_ref_prototype: RefCell<Option<v8::Global<v8::Object>>>,
    /// `MinKey` and `MaxKey` without a call: the constructor stands for the value.
    key_constructors: RefCell<Vec<(v8::Global<v8::Value>, Type)>>,
}

/// Memories by the names in them, shared between all objects of one shape.
#[derive(Default)]
struct Origins {
    by_signature: HashMap<Vec<u8>, v8::Global<v8::Object>>,
}

const ORIGINS_MAX: usize = 1024;

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

    /// The bindings of the isolate that `scope` belongs to.
    pub fn of(scope: &v8::Isolate) -> Option<Rc<Bindings>> {
        scope.get_slot::<Rc<Bindings>>().cloned()
    }

    /// The symbol under which [`Bindings`] remembers types; a copy of an object that should
    /// return with the same types copies this property too.
    pub fn origin_symbol<'s>(&self, scope: &mut v8::HandleScope<'s>) -> v8::Local<'s, v8::Symbol> {
        v8::Local::new(scope, &self.origin)
    }

    fn make<'s>(
        &self,
        scope: &mut v8::HandleScope<'s>,
        kind: Type,
        payload: v8::Local<'s, v8::Value>,
        second: Option<v8::Local<'s, v8::Value>>,
    ) -> Option<v8::Local<'s, v8::Object>> {
        let template = v8::Local::new(scope, &self.types[kind as usize - 1].instance);
        let object = template.new_instance(scope)?;
        let tag = v8::Integer::new(scope, kind as i32);
        object.set_internal_field(FIELD_TAG, tag.into());
        object.set_internal_field(FIELD_PAYLOAD, payload.into());
        if let Some(second) = second {
            object.set_internal_field(FIELD_SECOND, second.into());
        }
        Some(object)
    }
}

/// Which of BSON's own types `object` is an instance of.
fn type_of(scope: &mut v8::HandleScope<'_>, object: v8::Local<'_, v8::Object>) -> Option<Type> {
    if object.internal_field_count() != FIELDS || object.is_array_buffer_view() {
        return None;
    }
    let tag = field(scope, object, FIELD_TAG)?.int32_value(scope)?;
    let index = usize::try_from(tag).ok()?.checked_sub(1)?;
    TYPES.get(index).map(|(kind, _)| *kind)
}

fn field<'s>(
    scope: &mut v8::HandleScope<'s>,
    object: v8::Local<'_, v8::Object>,
    index: usize,
) -> Option<v8::Local<'s, v8::Value>> {
    let data = object.get_internal_field(scope, index)?;
    v8::Local::<v8::Value>::try_from(data).ok()
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
