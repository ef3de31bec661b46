/** Private is what the language itself keeps private: `#name`. A constructor has no such form and may say `private`. */
import ts from 'typescript';
import type { StyleRule } from '../rule.ts';
import { findingsOf, hasModifier } from '../walk.ts';

export const privateMembers: StyleRule = {
  name: 'private-members',
  instead: 'write `#name`; the keyword `private` is for constructors',
  find: (files) =>
    findingsOf(files, (node) => {
      if (!ts.isClassElement(node) && !ts.isParameter(node)) return undefined;
      if (ts.isConstructorDeclaration(node) || !hasModifier(node, ts.SyntaxKind.PrivateKeyword))
        return undefined;
      return node.name?.getText() ?? 'private';
    }),
};
