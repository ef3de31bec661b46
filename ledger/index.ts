export { type Filesystem, filesystemOf, filesystemOfMagic } from './filesystem.ts';
export { type ApiKey, hashKey, keyPrefix } from './keys.ts';
export { type Committed, Ledger, type LedgerOptions, type OpenedLedger, openLedger } from './ledger.ts';
export { type LedgerReader, openLedgerReader } from './reader.ts';
export type { RequestRecord, SessionFacts } from './record.ts';
export type { RepairReport } from './repair.ts';
export { type UsageDimension, type UsageQuery, type UsageRow, usageDimensions } from './usage.ts';
