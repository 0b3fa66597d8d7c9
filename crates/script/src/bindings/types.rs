//! What the conversions need of a context, and the types that only BSON has.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::strings::StringCache;

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

pub(super) const TYPES: [(Type, &str); 10] = [
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
pub(super) const FIELD_TAG: usize = 0;
pub(super) const FIELD_PAYLOAD: usize = 1;
pub(super) const FIELD_SECOND: usize = 2;
pub(super) const FIELDS: usize = 3;

pub(super) struct TypeHandles {
    pub(super) instance: v8::Global<v8::ObjectTemplate>,
    pub(super) constructor: v8::Global<v8::Function>,
}

/// What the conversions need of a context: templates, symbols, strings made before.
pub struct Bindings {
    pub(super) types: Vec<TypeHandles>,
    /// Key of the memory of [`Origins`].
    pub(super) origin: v8::Global<v8::Symbol>,
    /// Key of the exact form of a regular expression or date that JavaScript cannot hold.
    pub(super) exact: v8::Global<v8::Private>,
    pub(super) names: RefCell<StringCache>,
    pub(super) values: RefCell<StringCache>,
    pub(super) origins: RefCell<Origins>,
    pub(super) db_ref_prototype: RefCell<Option<v8::Global<v8::Object>>>,
    /// `MinKey` and `MaxKey` without a call: the constructor stands for the value.
    pub(super) key_constructors: RefCell<Vec<(v8::Global<v8::Value>, Type)>>,
}

/// Memories by the names in them, shared between all objects of one shape.
#[derive(Default)]
pub(super) struct Origins {
    pub(super) by_signature: HashMap<Vec<u8>, v8::Global<v8::Object>>,
}

pub(super) const ORIGINS_MAX: usize = 1024;

impl Bindings {
    /// The bindings of the isolate that `scope` belongs to.
    pub fn of(scope: &v8::Isolate) -> Option<Rc<Bindings>> {
        scope.get_slot::<Rc<Bindings>>().cloned()
    }

    /// The symbol under which [`Bindings`] remembers types; a copy of an object that should
    /// return with the same types copies this property too.
    pub fn origin_symbol<'s>(&self, scope: &mut v8::HandleScope<'s>) -> v8::Local<'s, v8::Symbol> {
        v8::Local::new(scope, &self.origin)
    }

    pub(super) fn make<'s>(
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
pub(super) fn type_of(
    scope: &mut v8::HandleScope<'_>,
    object: v8::Local<'_, v8::Object>,
) -> Option<Type> {
    if object.internal_field_count() != FIELDS || object.is_array_buffer_view() {
        return None;
    }
    let tag = field(scope, object, FIELD_TAG)?.int32_value(scope)?;
    let index = usize::try_from(tag).ok()?.checked_sub(1)?;
    TYPES.get(index).map(|(kind, _)| *kind)
}

pub(super) fn field<'s>(
    scope: &mut v8::HandleScope<'s>,
    object: v8::Local<'_, v8::Object>,
    index: usize,
) -> Option<v8::Local<'s, v8::Value>> {
    let data = object.get_internal_field(scope, index)?;
    v8::Local::<v8::Value>::try_from(data).ok()
}
