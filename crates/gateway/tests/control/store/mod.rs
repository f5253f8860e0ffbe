//! The guarantees of a store, one file for each thing that may go wrong.

mod access;
mod changes;
mod crashes;
mod documented;
mod hostile;
mod kinds;
mod lasting;
mod load;
mod python_client;
mod races;
mod refused;
mod schemas;
mod secrecy;
mod serving;
mod stage;
mod upgrading;
