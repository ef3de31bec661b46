import { sumUnsummedSql, usageByHourSql } from './accounting-schema.ts';

/**
 * Version 4. `days` has the hours of each day that is over as one block (`day-block.ts`), made of `hours` and made anew
 * at will. Sums are written with their requests. Requests come from the tail, files beside the ledger that the gateway
 * appends to: `tail_position` says up to where they are in the tables.
 */
export const daysSql = `
  ${sumUnsummedSql}
  DROP VIEW usage_by_hour;
  DROP TABLE summed;
  CREATE TABLE days (
    day INTEGER PRIMARY KEY,
    sums BLOB NOT NULL
  ) STRICT;
  CREATE TABLE tail_position (
    file INTEGER NOT NULL,
    bytes INTEGER NOT NULL
  ) STRICT;
  INSERT INTO tail_position VALUES (0, 0);
  ${usageByHourSql('hours')}
`;
