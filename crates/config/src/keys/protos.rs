//! The keys of `protos`: definitions of Protocol Buffers, as APISIX's Admin API keeps them.
//!
//! No plugin reads them. A store keeps them for other programs that share it; a file may have them on their way there.

use crate::keys::shared::{ID, resource};
use stillgate_schema::kind::{At, LocatedKind, TEXT};

resource! {
    /// A definition of Protocol Buffers.
    pub(crate) struct ProtoKeys {
        /// Unique among protos.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// The text of a `.proto` file, or a compiled descriptor set in base64.
        content: String = TEXT => required;
    }
}
