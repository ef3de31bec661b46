/** What a class is for stands at the class, where an editor shows it to whoever uses it, not at the top of its file. */
import ts from 'typescript';
import type { StyleRule } from '../rule.ts';
import { findingsOf, hasModifier } from '../walk.ts';

export const classComment: StyleRule = {
  name: 'class-comment',
  instead: 'an exported class has a `/** … */` directly before it',
  find: (files) =>
    findingsOf(files, (node) => {
      if (!ts.isClassDeclaration(node) || !hasModifier(node, ts.SyntaxKind.ExportKeyword)) return undefined;
      const documented = ts.getJSDocCommentsAndTags(node).some(ts.isJSDoc);
      return documented ? undefined : (node.name?.text ?? 'the default export');
    }),
};
