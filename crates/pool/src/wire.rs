//! The one encoding of everything that the pool sends or stores: what a value needs and nothing else, integers little-endian.
//!
//! A chunk's bytes are neither copied nor looked at when they are decoded: they stay part of the message that they came in. Whatever
//! comes in may be damaged or hostile: decoding fails, never panics, and reserves no memory that the message does not account for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};

/// What came in is no such value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of the pool is damaged, or of another version")]
pub struct Malformed;

/// A value that is sent or stored.
pub trait Wire: Sized {
    /// Appends it.
    fn put(&self, out: &mut impl BufMut);

    /// Takes one from the front.
    ///
    /// # Errors
    /// [`Malformed`].
    fn take(from: &mut Bytes) -> Result<Self, Malformed>;

    /// All of it, alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// One, and nothing behind it.
    ///
    /// # Errors
    /// [`Malformed`].
    fn from_bytes(mut bytes: Bytes) -> Result<Self, Malformed> {
        let value = Self::take(&mut bytes)?;
        if bytes.has_remaining() { Err(Malformed) } else { Ok(value) }
    }
}

macro_rules! integers {
    ($($type:ty, $put:ident, $take:ident;)*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut impl BufMut) {
                out.$put(*self);
            }

            fn take(from: &mut Bytes) -> Result<Self, Malformed> {
                from.$take().map_err(|_| Malformed)
            }
        }
    )*};
}

integers! {
    u8, put_u8, try_get_u8;
    u16, put_u16_le, try_get_u16_le;
    u32, put_u32_le, try_get_u32_le;
    u64, put_u64_le, try_get_u64_le;
}

impl Wire for () {
    fn put(&self, _: &mut impl BufMut) {}

    fn take(_: &mut Bytes) -> Result<Self, Malformed> {
        Ok(())
    }
}

/// Whole nanoseconds, 584 years at most.
impl Wire for Duration {
    fn put(&self, out: &mut impl BufMut) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        u64::take(from).map(Self::from_nanos)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut impl BufMut) {
        out.put_u8(u8::from(*self));
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

/// How many of something follow.
fn put_count(count: usize, out: &mut impl BufMut) {
    out.put_u32_le(u32::try_from(count).expect("nothing that is sent has four billion parts"));
}

fn take_count(from: &mut Bytes) -> Result<usize, Malformed> {
    usize::try_from(u32::take(from)?).map_err(|_| Malformed)
}

impl Wire for Bytes {
    fn put(&self, out: &mut impl BufMut) {
        put_count(self.len(), out);
        out.put_slice(self);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        let length = take_count(from)?;
        if length > from.len() { Err(Malformed) } else { Ok(from.split_to(length)) }
    }
}

impl Wire for String {
    fn put(&self, out: &mut impl BufMut) {
        put_count(self.len(), out);
        out.put_slice(self.as_bytes());
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        Self::from_utf8(<Bytes as Wire>::take(from)?.to_vec()).map_err(|_| Malformed)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut impl BufMut) {
        put_count(self.len(), out);
        self.iter().for_each(|each| each.put(out));
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        let count = take_count(from)?;
        // Whatever is sent takes a byte at least, so that a count alone reserves nothing.
        if count > from.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| T::take(from)).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut impl BufMut) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        if bool::take(from)? { T::take(from).map(Some) } else { Ok(None) }
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut impl BufMut) {
        put_count(self.len(), out);
        self.iter().for_each(|(key, value)| {
            key.put(out);
            value.put(out);
        });
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        Ok(Vec::<(K, V)>::take(from)?.into_iter().collect())
    }
}

impl<T: Wire + Ord> Wire for BTreeSet<T> {
    fn put(&self, out: &mut impl BufMut) {
        put_count(self.len(), out);
        self.iter().for_each(|each| each.put(out));
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        Ok(Vec::<T>::take(from)?.into_iter().collect())
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut impl BufMut) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        if bool::take(from)? { T::take(from).map(Ok) } else { E::take(from).map(Err) }
    }
}

macro_rules! tuples {
    ($(($($name:ident),*);)*) => {$(
        impl<$($name: Wire),*> Wire for ($($name,)*) {
            #[allow(non_snake_case, reason = "a type and its value have one name")]
            fn put(&self, out: &mut impl BufMut) {
                let ($($name,)*) = self;
                $($name.put(out);)*
            }

            fn take(from: &mut Bytes) -> Result<Self, Malformed> {
                Ok(($($name::take(from)?,)*))
            }
        }
    )*};
}

tuples! {
    (A, B);
    (A, B, C);
}

/// Encodes a struct field by field.
macro_rules! wire_struct {
    ($($type:ty { $($field:tt),* })*) => {$(
        impl $crate::wire::Wire for $type {
            fn put(&self, out: &mut impl bytes::BufMut) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }

            fn take(from: &mut bytes::Bytes) -> Result<Self, $crate::wire::Malformed> {
                Ok(Self { $($field: $crate::wire::Wire::take(from)?),* })
            }
        }
    )*};
}

/// Encodes an enum as the number of the variant and its fields. A number that was used once stands for that variant for ever.
macro_rules! wire_enum {
    ($($type:ty { $($tag:literal = $variant:ident $(($($part:ident),*))? $({$($field:ident),*})?,)* })*) => {$(
        impl $crate::wire::Wire for $type {
            fn put(&self, out: &mut impl bytes::BufMut) {
                match self {
                    $(Self::$variant $(($($part),*))? $({$($field),*})? => {
                        out.put_u8($tag);
                        $($($crate::wire::Wire::put($part, out);)*)?
                        $($($crate::wire::Wire::put($field, out);)*)?
                    })*
                }
            }

            fn take(from: &mut bytes::Bytes) -> Result<Self, $crate::wire::Malformed> {
                match <u8 as $crate::wire::Wire>::take(from)? {
                    $($tag => {
                        $($(let $part = $crate::wire::Wire::take(from)?;)*)?
                        $($(let $field = $crate::wire::Wire::take(from)?;)*)?
                        Ok(Self::$variant $(($($part),*))? $({$($field),*})?)
                    })*
                    _ => Err($crate::wire::Malformed),
                }
            }
        }
    )*};
}

pub(crate) use {wire_enum, wire_struct};
