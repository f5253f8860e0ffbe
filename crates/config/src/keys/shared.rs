//! Keys that several kinds of resources have: written once, put into each table between its id and its own keys.

/// An object with keys that other resources have, too: a first block, the names of the shared keys, a second block.
macro_rules! resource {
    (
        $(#[doc = $doc:literal])+
        pub(crate) struct $name:ident { $($first:tt)* }
        shared $($shared:ident),+;
        { $($rest:tt)* }
    ) => {
        $crate::keys::shared::resource! {
            @put [$(#[doc = $doc])+ pub(crate) struct $name] [$($first)*] [$($shared)+] [$($rest)*]
        }
    };
    (@put [$($head:tt)*] [$($keys:tt)*] [] [$($rest:tt)*]) => {
        stillgate_schema::object! { $($head)* { $($keys)* $($rest)* } }
    };
    (@put $head:tt [$($keys:tt)*] [name $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " A name to recognise it by."]
            name: String = stillgate_schema::kind::TEXT => optional;
        ] [$($shared)*] $rest }
    };
    (@put $head:tt [$($keys:tt)*] [desc $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " A description."]
            desc: String = stillgate_schema::kind::TEXT => optional;
        ] [$($shared)*] $rest }
    };
    (@put $head:tt [$($keys:tt)*] [labels $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " Names and texts of your choice."]
            labels: () = stillgate_schema::kind::Labels => optional;
        ] [$($shared)*] $rest }
    };
    (@put $head:tt [$($keys:tt)*] [times $($shared:ident)*] $rest:tt) => {
        $crate::keys::shared::resource! { @put $head [
            $($keys)*
            #[doc = " When it was created, in seconds since 1970; without effect."]
            create_time: i64 = $crate::keys::resources::UNIX_TIME => optional;
            #[doc = " When it was last changed, in seconds since 1970; without effect."]
            update_time: i64 = $crate::keys::resources::UNIX_TIME => optional;
        ] [$($shared)*] $rest }
    };
}

pub(crate) use resource;
