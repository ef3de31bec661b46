/** The rules of style, which `test/repo-rules/style.test.ts` holds the whole tree against. */
import type { StyleRule } from './rule.ts';
import { bounds } from './rules/bounds.ts';
import { classComment } from './rules/class-comment.ts';
import { commentWidth } from './rules/comment-width.ts';
import { conditionalSpread } from './rules/conditional-spread.ts';
import { deviceKind } from './rules/device-kind.ts';
import { fileJson } from './rules/file-json.ts';
import { functionLength } from './rules/function-length.ts';
import { privateMembers } from './rules/private-members.ts';
import { sameName } from './rules/same-name.ts';
import { units } from './rules/units.ts';

export const styleRules: readonly StyleRule[] = [
  privateMembers,
  bounds,
  units,
  conditionalSpread,
  functionLength,
  commentWidth,
  classComment,
  fileJson,
  deviceKind,
  sameName,
];
